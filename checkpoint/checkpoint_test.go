package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/filetrace"
	"github.com/crisp-cri/crisp/test/testdisk"
	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/crisp-cri/crisp/test/testheap"
)

type thing struct {
	Name string
	Raw  []byte
}

func openTest(t *testing.T, dir, bootID string) (*Manager, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	if err := os.MkdirAll(dir+".state", 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := open(dir, dir+".state", bootID, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return m, &log
}

// A saved record and its owner's files beside it are there for the next daemon, and are gone after
// Remove.
func TestRecordOutlivesManager(t *testing.T) {
	dir := t.TempDir()
	m, _ := openTest(t, dir, "boot")
	want := thing{Name: "<a> & b", Raw: []byte{0xff, 0, 1}}
	for _, id := range []string{"b", "a"} {
		if err := m.Save("containers", id, want); err != nil {
			t.Fatal(err)
		}
	}
	beside := filepath.Join(dir, "containers", "a", "exit.json")
	if err := os.WriteFile(beside, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}

	m, _ = openTest(t, dir, "boot")
	ids, err := m.IDs("containers")
	if diff := cmp.Diff([]string{"a", "b"}, ids); diff != "" || err != nil {
		t.Fatalf("IDs (err %v): %s", err, diff)
	}
	var got thing
	if err := m.Load("containers", "a", &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	for range 2 { // CRI's removals must be idempotent
		if err := m.Remove("containers", "a"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Dir(beside)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory is still there (err %v)", err)
	}
	if err := m.Load("containers", "a", &got); !errors.Is(err, fault.NotFound) {
		t.Errorf("load of a removed record: %v", err)
	}
	if ids, err := m.IDs("sandboxes"); len(ids) != 0 || err != nil {
		t.Errorf("a kind without records has %v (err %v)", ids, err)
	}
}

// A corrupt record does not affect others; it is moved aside and reported, and its ID can be used
// again.
func TestCorruptRecordIsSetAside(t *testing.T) {
	good, err := encode(thing{Name: "good"})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]byte{
		"empty":         {},
		"cut":           good[:len(good)/2],
		"flipped":       bytes.Replace(good, []byte("good"), []byte("goof"), 1),
		"zeros":         make([]byte, 4096),
		"no version":    bytes.Replace(good, []byte(`"version":1`), []byte(`"version":0`), 1),
		"damaged newer": bytes.Replace(bytes.Replace(good, []byte(`"version":1`), []byte(`"version":4`), 1), []byte("good"), []byte("goof"), 1),
		"trailing data": append(append([]byte{}, good...), good...),
		"no checksum":   []byte(`{"version":1,"payload":{}}`),
	}
	for name, data := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			m, log := openTest(t, dir, "boot")
			for _, id := range []string{"bad", "fine"} {
				if err := m.Save("sandboxes", id, thing{Name: id}); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, "sandboxes", "bad", recordFile)
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}

			ids, err := m.IDs("sandboxes")
			if diff := cmp.Diff([]string{"fine"}, ids); diff != "" || err != nil {
				t.Errorf("IDs (err %v): %s", err, diff)
			}
			aside, _ := filepath.Glob(filepath.Join(dir, quarantine, "sandboxes-bad.*.json"))
			if len(aside) != 1 {
				t.Fatalf("quarantine holds %v", aside)
			}
			if kept, err := os.ReadFile(aside[0]); !bytes.Equal(kept, data) {
				t.Errorf("quarantined %q (err %v)", kept, err)
			}
			if !strings.Contains(log.String(), "id=bad") {
				t.Errorf("not reported: %s", log)
			}
			if err := m.Save("sandboxes", "bad", thing{Name: "again"}); err != nil {
				t.Error(err)
			}
			var got thing
			if err := m.Load("sandboxes", "bad", &got); err != nil || got.Name != "again" {
				t.Errorf("loaded %+v (err %v)", got, err)
			}
		})
	}
}

// A record of a newer release is not corrupt: the daemon does not start, and leaves everything for
// that release, including the mark of how the machine went down.
func TestNewerRecordStopsTheDaemon(t *testing.T) {
	dir := t.TempDir()
	m, _ := openTest(t, dir, "boot")
	for _, kind := range []string{"containers", "image"} {
		if err := m.Save(kind, "x", thing{Name: kind}); err != nil {
			t.Fatal(err)
		}
	}
	boot, err := os.ReadFile(filepath.Join(dir, "boot.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"containers", "image"} {
		path := filepath.Join(dir, kind, "x", recordFile)
		old, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// A later release may add a field outside of the payload.
		newer := bytes.Replace(old, []byte(`"version":1`), []byte(`"version":4,"compression":"none"`), 1)
		if err := os.WriteFile(path, newer, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := open(dir, "", "another boot", slog.New(slog.DiscardHandler)); !errors.Is(err, fault.WrongState) || !strings.Contains(err.Error(), path) {
			t.Errorf("open with a newer record of kind %s: %v", kind, err)
		}
		if _, err := m.IDs(kind); !errors.Is(err, fault.WrongState) {
			t.Errorf("IDs: %v", err)
		}
		var got thing
		if err := m.Load(kind, "x", &got); !errors.Is(err, fault.WrongState) {
			t.Errorf("load: %v", err)
		}
		if now, err := os.ReadFile(path); !bytes.Equal(now, newer) {
			t.Errorf("the record is now %q (err %v)", now, err)
		}
		if now, err := os.ReadFile(filepath.Join(dir, "boot.json")); !bytes.Equal(now, boot) {
			t.Errorf("the boot mark is now %q (err %v)", now, err)
		}
		if _, err := os.Stat(filepath.Join(dir, quarantine)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("something is in quarantine (err %v)", err)
		}
		if err := os.WriteFile(path, old, 0o600); err != nil {
			t.Fatal(err)
		}
		if m, err = open(dir, "", "boot", slog.New(slog.DiscardHandler)); err != nil || m.Load(kind, "x", &got) != nil || got.Name != kind {
			t.Errorf("the newer release finds %+v (err %v)", got, err)
		}
	}
}

// A value that older releases would misread has a record that they refuse.
func TestVersionedRecord(t *testing.T) {
	dir := t.TempDir()
	m, _ := openTest(t, dir, "boot")
	for _, v := range []versionedThing{{Version: 1}, {Version: 2}} {
		if err := m.Save("containers", "x", v); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "containers", "x", recordFile))
		if want := fmt.Sprintf(`{"version":%d,`, v.Version); err != nil || !strings.HasPrefix(string(data), want) {
			t.Errorf("record is %s (err %v), want %s…", data, err, want)
		}
		var got versionedThing
		if err := m.Load("containers", "x", &got); err != nil || got != v {
			t.Errorf("read %+v (err %v), want %+v", got, err, v)
		}
	}
}

type versionedThing struct{ Version int }

// RecordVersion implements Versioned.
func (v versionedThing) RecordVersion() int { return v.Version }

// An unknown field in a record of a known version is ignored: a release may add one without raising
// the version only if its loss does no harm.
func TestUnknownFieldIsPassedOver(t *testing.T) {
	m, _ := openTest(t, t.TempDir(), "boot")
	if err := m.Save("containers", "x", map[string]any{"Name": "x", "Colour": "red"}); err != nil {
		t.Fatal(err)
	}
	var got thing
	if err := m.Load("containers", "x", &got); err != nil || got.Name != "x" {
		t.Errorf("loaded %+v (err %v)", got, err)
	}
}

// An intact payload of another type than its owner expects is corrupt, too.
func TestLoadIntoAnotherType(t *testing.T) {
	m, _ := openTest(t, t.TempDir(), "boot")
	if err := m.Save("containers", "x", "a string"); err != nil {
		t.Fatal(err)
	}
	var got thing
	if err := m.Load("containers", "x", &got); !errors.Is(err, fault.NotFound) {
		t.Errorf("got %v", err)
	}
	if ids, _ := m.IDs("containers"); len(ids) != 0 {
		t.Errorf("still listed: %v", ids)
	}
}

// A crash during Save leaves a temporary file, which must not count, and must be removed.
func TestCrashLeftovers(t *testing.T) {
	dir := t.TempDir()
	m, _ := openTest(t, dir, "boot")
	if err := m.Save("containers", "whole", thing{}); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(dir, "containers", "half")
	if err := os.Mkdir(half, 0o700); err != nil {
		t.Fatal(err)
	}
	var temps []string
	for _, d := range []string{half, filepath.Join(dir, "containers", "whole")} {
		f, err := os.CreateTemp(d, "."+recordFile+".*.tmp")
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		temps = append(temps, f.Name())
	}
	ids, err := m.IDs("containers")
	if diff := cmp.Diff([]string{"whole"}, ids); diff != "" || err != nil {
		t.Errorf("IDs (err %v): %s", err, diff)
	}
	for _, path := range temps {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there (err %v)", path, err)
		}
	}
	if _, err := os.Stat(half); err != nil {
		t.Errorf("the directory is its owner's to sweep: %v", err)
	}
}

func TestHostileNames(t *testing.T) {
	m, _ := openTest(t, t.TempDir(), "boot")
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/", ".hidden", "a\x00b", quarantine} {
		for _, err := range []error{
			m.Save("containers", name, 1), m.Save(name, "x", 1),
			m.Load("containers", name, new(int)), m.Remove("containers", name), m.Remove(name, "x"),
		} {
			if !errors.Is(err, fault.Invalid) {
				t.Errorf("name %q: got %v, want invalid", name, err)
			}
		}
	}
}

// Restart, reboot and power loss need different repairs.
func TestBoot(t *testing.T) {
	tests := []struct {
		name  string
		first string // boot id of the first daemon, "" = there was none
		clean bool
		spoil string // what boot.json holds instead
		want  Boot
	}{
		{"fresh", "", false, "", Fresh},
		{"restart", "now", true, "", Restart},
		{"killed", "now", false, "", Restart},
		{"reboot", "before", true, "", Reboot},
		{"power loss", "before", false, "", Unclean},
		{"damaged mark", "now", true, "{", Restart},
		{"empty mark", "now", false, "\x00", Restart},
		{"damaged mark after a reboot", "before", true, "{", Unclean},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.first != "" {
				m, _ := openTest(t, dir, tt.first)
				if tt.clean {
					if err := m.MarkClean(); err != nil {
						t.Fatal(err)
					}
				}
			}
			if tt.spoil != "" {
				if err := os.WriteFile(filepath.Join(dir, "boot.json"), []byte(tt.spoil), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m, _ := openTest(t, dir, "now")
			if m.Boot() != tt.want {
				t.Errorf("got %v, want %v", m.Boot(), tt.want)
			}
			if want := tt.want == Reboot || tt.want == Unclean; m.Boot().Rebooted() != want {
				t.Errorf("rebooted is %v", m.Boot().Rebooted())
			}
			// The clean mark is gone while a daemon runs.
			if m, _ := openTest(t, dir, "later"); m.Boot() != Unclean {
				t.Errorf("after a crash of the second daemon: got %v, want %v", m.Boot(), Unclean)
			}
		})
	}
}

// A daemon starts as often as it is killed on a full disk that copies what is written, whatever the
// power cut before has left of the mark, and knows later that the machine kept running.
func TestBootOnAFullDisk(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	for _, tt := range []struct {
		name, mark string
		want       Boot // of the first start
		fails      bool
	}{
		{"whole", `{"bootID":"before","clean":false}`, Unclean, false},
		{"empty", "", Unclean, false},
		{"part", `{"bootID":"be`, Unclean, false},
		{"of a clean end", `{"bootID":"before","clean":true}`, Reboot, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			below, upper, dir, state := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
			mount := func(what, at, options string) {
				t.Helper()
				if err := unix.Mount(what, at, what, 0, options); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
						t.Error(err)
					}
				})
			}
			mount("tmpfs", upper, "size=64k,nr_inodes=0")
			full := filepath.Join(upper, "full")
			for _, sub := range []string{"upper", "work", "full"} {
				if err := os.Mkdir(filepath.Join(upper, sub), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(below, "boot.json"), []byte(tt.mark), 0o600); err != nil {
				t.Fatal(err)
			}
			mount("overlay", dir, fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", below, upper, upper))
			if err := testdisk.Fill(full); err != nil {
				t.Fatal(err)
			}
			check := func(when string, want Boot, full bool) {
				t.Helper()
				m, err := open(dir, state, "now", slog.New(slog.DiscardHandler))
				if tt.fails && full {
					if !atomicfile.IsFull(err) {
						t.Errorf("%s: %v", when, err)
					}
				} else if err != nil || m.Boot() != want {
					t.Fatalf("%s: got %v, %v, want %v", when, m, err, want)
				}
			}
			check("first start", tt.want, true)
			check("killed", Restart, true)
			if err := os.RemoveAll(full); err != nil {
				t.Fatal(err)
			}
			if tt.fails {
				check("with room", tt.want, false)
			}
			check("killed with room", Restart, false)
			check("killed again", Restart, false)
		})
	}
}

// decode handles any bytes, accepts only what encode has made, and takes memory in proportion: all
// records are read at a start.
func FuzzDecode(f *testing.F) {
	good, err := encode(thing{Name: "good"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte(`{"version":1,"checksum":"","payload":null}`))
	f.Add([]byte(`[]`))
	f.Add([]byte(`{"version":1,"checksum":"` + strings.Repeat("\xef", 64<<10) + `"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		begin := testheap.Allocated()
		payload, err := decode(data)
		testheap.Bound{Base: 64 << 10, PerByte: 16}.Check(t, "bytes allocated", testheap.Allocated()-begin, len(data))
		if err != nil {
			return
		}
		if !json.Valid(data) || !json.Valid(payload) {
			t.Fatalf("accepted %q", data)
		}
		// A record with any byte of the payload changed must be refused.
		at := bytes.Index(data, payload)
		spoilt := bytes.Clone(data)
		spoilt[at+len(payload)/2] ^= 1
		if again, err := decode(spoilt); err == nil && !bytes.Equal(again, payload) {
			t.Errorf("accepted %q", spoilt)
		}
	})
}

// A record that is kept is one like a saved one, without a sync. What a power cut leaves of it, and an
// earlier release's draft, is neither a record nor corrupt.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	m, _ := openTest(t, dir, "boot")
	for _, id := range []string{"kept", "changed", "removed", "torn"} {
		if err := m.Keep("kind", id, thing{Name: "first of " + id}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(m.Keep("kind", "changed", thing{Name: "second"}), m.Remove("kind", "removed")); err != nil {
		t.Fatal(err)
	}
	tracer := filetrace.Start(t, dir)
	if err := errors.Join(m.Keep("kind", "kept", thing{Name: "again"}), m.Keep("kind", "new", thing{Name: "new"})); err != nil {
		t.Fatal(err)
	}
	for _, op := range tracer.Stop() {
		if op.Kind == filetrace.Fsync {
			t.Errorf("Keep has synced %s", op.Path)
		}
	}
	draft := filepath.Join(dir, "kind", "drafted", "draft.json")
	if err := errors.Join(os.Truncate(filepath.Join(dir, "kind", "torn", "record.json"), 20), os.MkdirAll(filepath.Dir(draft), 0o700), os.WriteFile(draft, []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	m, _ = openTest(t, dir, "another boot")
	ids, err := m.IDs("kind")
	if want := []string{"changed", "kept", "new"}; err != nil || !slices.Equal(ids, want) {
		t.Errorf("IDs are %q, %v, not %q", ids, err, want)
	}
	for id, want := range map[string]string{"kept": "again", "changed": "second", "new": "new"} {
		var got thing
		if err := m.Load("kind", id, &got); err != nil || got.Name != want {
			t.Errorf("%s is %q, %v", id, got.Name, err)
		}
	}
	if err := m.Load("kind", "torn", new(thing)); !errors.Is(err, fault.NotFound) {
		t.Errorf("torn: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "quarantine")); err == nil {
		t.Error("a part of a record was taken for a corrupt one")
	}
	if _, err := os.Stat(draft); err == nil {
		t.Error("the draft is still there")
	}
}

// After a power cut, the beginning of a record, or zeros, are left of a record whose first Save has
// not returned; other damage makes a record corrupt, as always.
func TestPartOfRecord(t *testing.T) {
	dir := t.TempDir()
	m, _ := openTest(t, dir, "boot 1")
	damage := map[string]func([]byte) []byte{
		"cut":     func(b []byte) []byte { return b[:len(b)/2] },
		"empty":   func([]byte) []byte { return nil },
		"zeros":   func(b []byte) []byte { return make([]byte, len(b)) },
		"flipped": func(b []byte) []byte { return bytes.Replace(b, []byte("name of"), []byte("game of"), 1) },
	}
	for id, do := range damage {
		if err := m.Save("kind", id, thing{Name: "name of " + id}); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "kind", id, recordFile)
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, do(data), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	m, _ = openTest(t, dir, "boot 2")
	if ids, err := m.IDs("kind"); err != nil || len(ids) > 0 {
		t.Errorf("IDs are %q, %v", ids, err)
	}
	aside, _ := filepath.Glob(filepath.Join(dir, quarantine, "*"))
	if len(aside) != 1 || !strings.Contains(aside[0], "kind-flipped.") {
		t.Errorf("in quarantine are %q", aside)
	}
}
