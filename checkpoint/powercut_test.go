package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/filetrace"
	"github.com/crisp-cri/crisp/test/powercut"
	"golang.org/x/sys/unix"
)

var (
	namelessFile = regexp.MustCompile(`#[0-9]+`)
	pid          = regexp.MustCompile(`\.[0-9]+\.new$`)
)

type note struct{ Text string }

// A record whose Save has returned is there after a power cut, and the store opens with whatever is
// left; a record that is being saved or removed has its old or its new state.
func TestPowerCutRecords(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	powercut.Case{
		Name: "records",
		Run: func(dir string, safe func(string)) {
			ok := func(err error) {
				if err != nil {
					t.Error(err)
				}
			}
			m, err := open(filepath.Join(dir, "root"), "", "boot 1", log)
			if err != nil {
				t.Error(err)
				return
			}
			save := func(id, text string) {
				ok(m.Save("pods", id, note{text}))
				safe(id + "=" + text)
			}
			save("a", "one")
			save("a", "two")
			save("b", "one")
			ok(m.Remove("pods", "a"))
			safe("a removed")
			save("b", "two")
			ok(m.MarkClean())
			safe("clean")
		},
		Check: func(dir string, safe []string) error {
			var said bytes.Buffer
			m, err := open(filepath.Join(dir, "root"), "", "boot 2", slog.New(slog.NewTextHandler(&said, nil)))
			if err != nil || said.Len() > 0 {
				return fmt.Errorf("open: %v, %s", err, said.String())
			}
			// Once all records are safe, the mark for a clean end is being written, or was.
			if marked := m.Boot() == Reboot; marked && len(safe) < 5 || !marked && len(safe) == 6 {
				return fmt.Errorf("the boot is %v", m.Boot())
			}
			if len(safe) > 0 && m.Boot() == Fresh {
				return errors.New("it takes itself for a new node")
			}
			if _, err := os.Stat(filepath.Join(dir, "root", quarantine)); err == nil {
				return errors.New("a record was corrupt")
			}
			ids, err := m.IDs("pods")
			if err != nil {
				return err
			}
			for _, id := range []string{"a", "b"} {
				var n note
				err := m.Load("pods", id, &n)
				if errors.Is(err, fault.NotFound) == slices.Contains(ids, id) {
					return fmt.Errorf("%s: listed %v, loaded %v", id, slices.Contains(ids, id), err)
				}
				last, removed := "", false
				for _, s := range safe {
					if text, ok := strings.CutPrefix(s, id+"="); ok {
						last = text
					}
					removed = removed || s == id+" removed"
				}
				// "two" may already be there while "one" is safe; a Remove may be half done.
				switch {
				case err == nil && (n.Text == "two" || n.Text == "one" && last != "two"):
				case errors.Is(err, fault.NotFound) && (last == "" || id == "a" && last == "two"):
				default:
					return fmt.Errorf("%s is %q, %v: safe was %q, removed %v", id, n.Text, err, last, removed)
				}
			}
			return errors.Join(m.Save("pods", "c", note{"three"}), m.Remove("pods", "a"), m.Remove("pods", "b"))
		},
		Redundant: map[string]string{
			"fsync root/": "the boot mark of a new node: nothing is safe before the first record, which syncs the directory again",
		},
		Lane: powercut.RecordLanes("root/", "pods"),
	}.Test(t)
}

// An archive whose Pack has returned is there and complete; before that, the previous one is.
func TestPowerCutPack(t *testing.T) {
	from := t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "memory"), []byte(strings.Repeat("page", 2000)), 0o600); err != nil {
		t.Fatal(err)
	}
	var first, second []byte
	powercut.Case{
		Name: "pack",
		Run: func(dir string, safe func(string)) {
			file := filepath.Join(dir, "archive.tar")
			for _, content := range []*[]byte{&first, &second} {
				if err := Pack(context.Background(), from, file); err != nil {
					t.Error(err)
				}
				var err error
				if *content, err = os.ReadFile(file); err != nil {
					t.Error(err)
				}
				safe("packed")
				if err := os.WriteFile(filepath.Join(from, "more"), []byte("pages"), 0o600); err != nil {
					t.Error(err)
				}
			}
		},
		Check: func(dir string, safe []string) error {
			got, err := os.ReadFile(filepath.Join(dir, "archive.tar"))
			switch {
			case os.IsNotExist(err) && len(safe) == 0:
				return nil
			case err != nil:
				return err
			case string(got) == string(second), string(got) == string(first) && len(safe) < 2:
				return nil
			}
			return fmt.Errorf("the archive has %d bytes", len(got))
		},
		Rename: func(path string) string {
			return pid.ReplaceAllString(namelessFile.ReplaceAllString(path, "#"), ".PID.new")
		},
	}.Test(t)
}

// If Save cannot tell whether this is a record's first one, it syncs what a first one needs.
func TestSaveWithoutStat(t *testing.T) {
	dir := t.TempDir()
	m, err := open(dir, "", "boot 1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	tracer := filetrace.Start(t, dir)
	tracer.Arm(1, unix.EIO)
	err = m.Save("pods", "a", note{"one"})
	if f := tracer.Disarm(); !f.Happened || !strings.Contains(f.What, "pods/a/record.json") {
		t.Fatalf("failed has %s", f.What)
	}
	if err != nil {
		return // an error is right, too
	}
	synced := map[string]bool{}
	for _, op := range tracer.Stop() {
		if op.Kind == filetrace.Fsync {
			synced[op.Path] = true
		}
	}
	if !synced["pods"] || !synced["."] {
		t.Errorf("Save returned no error, and has synced only %v", synced)
	}
}

// A record that cannot be read for lack of descriptors or memory is not corrupt: if it were moved
// aside, its containers would be taken for leaked ones and killed.
func TestGoodRecordIsNotMovedAside(t *testing.T) {
	dir := t.TempDir()
	m, err := open(dir, "", "boot 1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Save("pods", "a", note{"one"}); err != nil {
		t.Fatal(err)
	}
	tracer := filetrace.Start(t, dir)
	for _, errno := range []syscall.Errno{unix.EMFILE, unix.ENOMEM, unix.EIO} {
		for n := 1; ; n++ {
			tracer.Arm(n, errno)
			ids, err := m.IDs("pods")
			var got note
			lerr := m.Load("pods", "a", &got)
			f := tracer.Disarm()
			if err == nil && !slices.Equal(ids, []string{"a"}) {
				t.Errorf("after %s the records are %q", f.What, ids)
			}
			if errors.Is(lerr, fault.NotFound) {
				t.Errorf("after %s: %v", f.What, lerr)
			}
			if err := m.Load("pods", "a", &got); err != nil {
				t.Fatalf("after %s: %v", f.What, err)
			}
			if !f.Happened {
				break
			}
		}
	}
}
