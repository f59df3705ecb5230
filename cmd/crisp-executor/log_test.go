package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// logging is the body of the processes that TestLog* start.
func logging(path string) {
	l := newLogFile(path)
	switch os.Getenv("CRISP_TEST_REMOVED") {
	case "removed":
		os.Remove(path)
		l.look()
	case "renamed":
		os.Rename(path, path+".old")
		l.Write([]byte("first\n"))
	case "with its directory":
		os.RemoveAll(filepath.Dir(path))
	}
	line := append(bytes.Repeat([]byte("x"), 999), '\n')
	for range 5 * maxLog / len(line) {
		l.Write(line)
	}
	var out unix.Stat_t
	if unix.Fstat(2, &out) != nil || out.Size > 2*maxLog+int64(len(line)) {
		os.Exit(3) // a lost log must still be bounded
	}
	os.Stderr.WriteString("last words\n")
	os.Exit(0)
}

// logTo starts a process that logs to a file as crispd opens it.
func logTo(t *testing.T, path, removed string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command(os.Args[0], "-test.run=TestLogIsBounded")
	cmd.Env = append(os.Environ(), "CRISP_TEST_LOG="+path, "CRISP_TEST_REMOVED="+removed)
	cmd.Stderr = f
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
}

// checkLog checks that only the log at path and its predecessor exist, and that their size is
// bounded.
func checkLog(t *testing.T, path string) {
	t.Helper()
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

// The log of a node that runs for years stays small and keeps its last lines, and
// whatever else the process writes to standard error goes to the new file.
func TestLogIsBounded(t *testing.T) {
	if path := os.Getenv("CRISP_TEST_LOG"); path != "" {
		logging(path)
	}
	path := filepath.Join(t.TempDir(), "executor.log")
	logTo(t, path, "")
	checkLog(t, path)
}

// An administrator may move the log elsewhere with a link: it stays there, and its size is bounded
// too.
func TestLogBehindALink(t *testing.T) {
	file, link := filepath.Join(t.TempDir(), "elsewhere.log"), filepath.Join(t.TempDir(), "executor.log")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	logTo(t, link, "")
	checkLog(t, file)
	if target, err := os.Readlink(link); err != nil || target != file {
		t.Errorf("the link is to %q (%v)", target, err)
	}
	if files, _ := filepath.Glob(link + "*"); len(files) != 1 {
		t.Errorf("files beside the link: %q", files)
	}
}

// After the log was removed, or rotated by another program, new lines are at its path again.
func TestRemovedLogIsMadeAnew(t *testing.T) {
	for _, how := range []string{"removed", "renamed"} {
		t.Run(how, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "executor.log")
			logTo(t, path, how)
			os.Remove(path + ".old")
			checkLog(t, path)
		})
	}
}

// A log that cannot be recreated is lost, but must not fill the disk.
func TestLogThatIsLostIsBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	logTo(t, filepath.Join(dir, "executor.log"), "with its directory")
}
