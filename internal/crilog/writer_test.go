package crilog_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/internal/crilog"
)

// A rotation that is reverted loses nothing. The kubelet renames the log, requests a new one and,
// if it gets no answer, as when crispd is killed just then, renames the old log back. The new log,
// to which all output goes by then, has no name any more.
func TestRotationTakenBack(t *testing.T) {
	put := func(w *crilog.Writer, text string) { w.Write(crilog.Stdout, []byte(text+"\n"), nil) }
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	reopen := func(w *crilog.Writer) {
		t.Helper()
		if err := w.Reopen(); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		after func(w *crilog.Writer, path string) *crilog.Writer
		want  string // in the log
	}{
		"written to": {func(w *crilog.Writer, _ string) *crilog.Writer { put(w, "three"); return w }, "one\ntwo\nthree\n"},
		"ended":      {func(w *crilog.Writer, _ string) *crilog.Writer { return w }, "one\ntwo\n"},
		"rotated again": {func(w *crilog.Writer, path string) *crilog.Writer {
			rename(path, path+".2")
			reopen(w)
			put(w, "three")
			return w
		}, "two\nthree\n"},
		"resumed by another executor": {func(w *crilog.Writer, path string) *crilog.Writer {
			w = crilog.Resume(w.File(), path, 0, crilog.Limit{}, nil)
			put(w, "three")
			return w
		}, "one\ntwo\nthree\n"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			w, err := crilog.Open(path, 0, crilog.Limit{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			put(w, "one")
			rename(path, path+".1")
			reopen(w)
			put(w, "two")
			rename(path+".1", path)
			if err := c.after(w, path).Close(); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(join(t, data, crilog.Stdout)); got != c.want {
				t.Errorf("log is %q, want %q", got, c.want)
			}
		})
	}
}

// A log that was removed to free its space is recreated with the next line, and its content is
// gone. Otherwise the container would continue to write to the deleted file, and the space would
// not be freed.
func TestRemovedLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod", "0.log")
	w, err := crilog.Open(path, 0, crilog.Limit{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one\n", "two\n"} {
		w.Write(crilog.Stdout, []byte(text), nil)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(join(t, data, crilog.Stdout)); got != text {
			t.Errorf("log is %q, want %q", got, text)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	// The directory of a removed pod is not recreated.
	if err := os.Remove(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	w.Write(crilog.Stdout, []byte("three\n"), nil)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(path)); err == nil {
		t.Error("the directory of the log is there again")
	}
}

// A rotation is complete once there is a new log, even if closing the old one fails: after an error
// the kubelet would revert it.
func TestReopenIsNoErrorOfTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	var said error
	w, err := crilog.Open(path, 0, crilog.Limit{}, func(err error, _ int64) { said = err })
	if err != nil {
		t.Fatal(err)
	}
	if err := w.File().Close(); err != nil { // the next close fails
		t.Fatal(err)
	}
	if err := w.Reopen(); err != nil || said == nil {
		t.Errorf("Reopen: %v; reported was %v", err, said)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
