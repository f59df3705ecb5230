package housekeeping

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// runtime has one container that writes to its log.
type runtime struct {
	path    string
	file    *os.File
	refuses bool
}

func (r *runtime) Logs(context.Context) (map[string]string, error) {
	return map[string]string{"c1": r.path}, nil
}

func (r *runtime) Reopen(context.Context, string) error {
	if r.refuses {
		return errors.New("not now")
	}
	var err error
	r.file, err = os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	return err
}

func TestRotate(t *testing.T) {
	dir := t.TempDir()
	r := &runtime{path: filepath.Join(dir, "0.log")}
	if err := r.Reopen(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	rot := &rotator{Rules: Rules{LogSize: 1000, LogFiles: 3}, Runtime: r, Log: slog.New(slog.DiscardHandler)}
	write := func(text string) {
		if _, err := r.file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	names := func() []string {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	write("small\n")
	rot.All(t.Context())
	if len(names()) != 1 {
		t.Fatalf("a small log was rotated: %v", names())
	}
	big := strings.Repeat("x", 1001)
	for i := range 6 { // as if a second had passed each time
		write(big)
		rot.All(t.Context())
		for _, name := range names() {
			if strings.HasPrefix(filepath.Base(name), "0.log.20") && !strings.HasSuffix(name, ".gz") && i < 5 {
				to := filepath.Join(dir, "0.log.2000010"+string(rune('1'+i))+"-000000")
				if _, err := os.Stat(to); err != nil && !strings.Contains(name, "2000010") {
					if err := os.Rename(name, to); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	got := names()
	if len(got) != 3 {
		t.Fatalf("%d files, want 3: %v", len(got), got)
	}
	var packed, plain string
	for _, name := range got[1:] {
		if strings.HasSuffix(name, ".gz") {
			packed = name
		} else {
			plain = name
		}
	}
	if data, err := os.ReadFile(plain); err != nil || len(data) != 1001 {
		t.Errorf("the newest rotated file: %d bytes, %v", len(data), err)
	}
	if data := unpack(t, packed); data != big {
		t.Errorf("the compressed file has %d bytes", len(data))
	}

	// A runtime that does not reopen the log continues to write to the same file.
	r.refuses = true
	write(big)
	if err := os.WriteFile(filepath.Join(dir, "0.log.1.tmp"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(plain, filepath.Join(dir, "0.log.20000109-000000")); err != nil {
		t.Fatal(err)
	}
	rot.All(t.Context())
	if info, err := os.Stat(r.path); err != nil || info.Size() != 1001 {
		t.Errorf("the log is %v, %v", info, err)
	}
}

func unpack(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A log that was removed, or renamed by an agent that was then killed, is reopened, so that the
// container's output is visible and bounded again.
func TestLogThatIsNotThere(t *testing.T) {
	r := &runtime{path: filepath.Join(t.TempDir(), "0.log")}
	if err := r.Reopen(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	rot := &rotator{Rules: Rules{LogSize: 10, LogFiles: 3}, Runtime: r, Log: slog.New(slog.DiscardHandler)}
	if err := os.Rename(r.path, r.path+".20000101-000000"); err != nil {
		t.Fatal(err)
	}
	r.refuses = true
	rot.All(t.Context())
	r.refuses = false
	rot.All(t.Context())
	if _, err := r.file.WriteString("heard"); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(r.path); string(data) != "heard" {
		t.Errorf("the log is %q, %v", data, err)
	}
	if old, err := filepath.Glob(r.path + ".*"); err != nil || len(old) != 1 {
		t.Errorf("rotated: %v, %v", old, err)
	}
}

// After the clock was set back, as at the end of summer time, the oldest files are still removed
// first, and the names of the others keep their order.
func TestClockSetBack(t *testing.T) {
	r := &runtime{path: filepath.Join(t.TempDir(), "0.log")}
	if err := r.Reopen(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".29991231-235958.gz", ".29991231-235959"} {
		if err := os.WriteFile(r.path+name, []byte("old"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	rot := &rotator{Rules: Rules{LogSize: 3, LogFiles: 3}, Runtime: r, Log: slog.New(slog.DiscardHandler)}
	for _, text := range []string{"first", "second", "third"} {
		if _, err := r.file.WriteString(text); err != nil {
			t.Fatal(err)
		}
		rot.All(t.Context())
	}
	got, err := filepath.Glob(r.path + "*")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{r.path, r.path + ".29991231-235959.000002.gz", r.path + ".29991231-235959.000003"}
	if !slices.Equal(got, want) {
		t.Fatalf("files %q, want %q", got, want)
	}
	if text := unpack(t, want[1]); text != "second" {
		t.Errorf("the older one is %q", text)
	}
}

// The executor rotates logs to a limit. Here what it has rotated is compressed, but the newest, as long
// as the copy fits in with the files that may be there; the log itself is left alone, even at its limit.
func TestCompressesWhatTheExecutorRotates(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]int
		want  string
	}{
		"room":          {map[string]int{"": 1000, ".20260101-000000.000001": 1000, ".20260101-000000.000002": 1000}, " .20260101-000000.000001.gz .20260101-000000.000002"},
		"no room":       {map[string]int{"": 10, ".20260101-000000": 1000, ".20260102-000000": 1000, ".20260103-000000": 1000}, " .20260101-000000 .20260102-000000 .20260103-000000"},
		"room for one":  {map[string]int{"": 10, ".20260101-000000": 1000, ".20260102-000000": 900, ".20260103-000000": 50}, " .20260101-000000.gz .20260102-000000.gz .20260103-000000"},
		"unfinished":    {map[string]int{"": 10, ".20260101-000000": 100, ".20260101-000000.tmp": 3, ".20260102-000000": 100}, " .20260101-000000.gz .20260102-000000"},
		"too many":      {map[string]int{"": 10, ".20260101-000000.gz": 9, ".20260102-000000.gz": 9, ".20260103-000000": 9, ".20260104-000000": 9}, " .20260102-000000.gz .20260103-000000.gz .20260104-000000"},
		"only a log":    {map[string]int{"": 1000}, ""},
		"newest of all": {map[string]int{"": 1000, ".20260101-000000": 1000}, " .20260101-000000"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &runtime{path: filepath.Join(t.TempDir(), "0.log"), refuses: true}
			for suffix, size := range c.files {
				if err := os.WriteFile(r.path+suffix, []byte(strings.Repeat("x", size)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			rot := &rotator{Rules: Rules{LogSize: 1000, LogFiles: 4}, Runtime: r, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
			rot.All(t.Context())
			files, err := filepath.Glob(r.path + "*")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, file := range files {
				got = append(got, strings.TrimPrefix(file, r.path))
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("the files are %q, want %q", text, c.want)
			}
		})
	}
}
