package rootless

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/crisp-cri/crisp/internal/procstat"
)

// A user's ranges are listed by name or by number; what is no range is none.
func TestRanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subuid")
	id := os.Getuid()
	text := fmt.Sprintf("other:1:2\n%d:100000:65536\n# a comment\n\n%d:7\n%d:300000:10\n", id, id, id)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([][2]string{{"100000", "65536"}, {"300000", "10"}}, ranges(path)); d != "" {
		t.Error(d)
	}
	if list := ranges(path + ".none"); list != nil {
		t.Errorf("a file that is missing has %v", list)
	}
}

// A keeper is the process that was started, not one that has its number now.
func TestRecorded(t *testing.T) {
	stat, err := procstat.Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{
		fmt.Sprintln(os.Getpid(), stat.StartTime):   os.Getpid(),
		fmt.Sprintln(os.Getpid(), stat.StartTime+1): 0,
		"":             0,
		"nonsense":     0,
		"4194304000 1": 0,
	} {
		f, err := os.Create(filepath.Join(t.TempDir(), "keeper"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte(text), 0); err != nil {
			t.Fatal(err)
		}
		if pid, err := recorded(f); pid != want || err != nil {
			t.Errorf("%q: got %d, %v, want %d", text, pid, err, want)
		}
	}
}
