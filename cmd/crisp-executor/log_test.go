package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The log of a node that runs for years stays small and keeps its last lines, and
// whatever else the process writes to standard error goes to the new file.
func TestLogIsBounded(t *testing.T) {
	if path := os.Getenv("CRISP_TEST_LOG"); path != "" {
		l := newLogFile(path)
		line := append(bytes.Repeat([]byte("x"), 999), '\n')
		for range 5 * maxLog / len(line) {
			l.Write(line)
		}
		os.Stderr.WriteString("last words\n")
		return
	}
	path := filepath.Join(t.TempDir(), "executor.log")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command(os.Args[0], "-test.run=TestLogIsBounded")
	cmd.Env = append(os.Environ(), "CRISP_TEST_LOG="+path)
	cmd.Stderr = f
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil || len(data) > maxLog+100 || !bytes.HasSuffix(data, []byte("x\nlast words\n")) {
		t.Errorf("%v, %d bytes", err, len(data))
	}
	before, err := os.ReadFile(path + ".1")
	if err != nil || len(before) > maxLog || len(before) < maxLog/2 {
		t.Errorf("the file before: %v, %d bytes", err, len(before))
	}
	if files, _ := filepath.Glob(path + "*"); len(files) != 2 {
		t.Errorf("files: %q", files)
	}
}
