package oci_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// FuzzRecover starts crispd on a disk with any JSON in its records and anything in its state
// files: it starts, all that it lists can be stopped and removed, and new sandboxes and
// containers can be made.
func FuzzRecover(f *testing.F) {
	const (
		sandbox   = `{"CreatedAt":"2026-01-01T00:00:00Z","Config":{"Name":"s","Hostname":"h","SharedPID":true,"Sysctls":{"kernel.sem":"1"}},"Ready":true}`
		container = `{"CreatedAt":"2026-01-01T00:00:01Z","Config":{"Name":"c","SandboxID":"5a","Spec":{"ociVersion":"1.2.0","process":{"args":["/testbin"],"cwd":"/"},"linux":{}},"TTY":true}}`
		exit      = `{"ID":"c0","Code":3,"At":"2026-01-01T00:00:02Z","Reason":"Error"}`
	)
	for _, status := range []string{`{"State":"running","Pid":7,"StartTime":9}`, `{"State":"exited","ExitCode":7}`, `{"State":"starting"}`, `{"State":"removing"}`, `{"State":"stopping"}`, ``, `{`, `null`} {
		f.Add([]byte(sandbox), []byte(`{"State":"ready","Pid":3,"StartTime":4}`), []byte(container), []byte(status), []byte(``))
		f.Add([]byte(sandbox), []byte(`{"State":"stopping"}`), []byte(container), []byte(status), []byte(exit))
		f.Add([]byte(`{}`), []byte(status), []byte(`{}`), []byte(status), []byte(`null`))
		f.Add([]byte(`null`), []byte(`{"State":"removing"}`), []byte(`{"Config":{"SandboxID":"5a","Spec":null}}`), []byte(status), []byte(status))
	}
	f.Fuzz(func(t *testing.T, sandbox, sandboxStatus, container, containerStatus, exit []byte) {
		if !json.Valid(sandbox) || !json.Valid(container) {
			t.Skip("its checksum is wrong")
		}
		for _, text := range [][]byte{sandboxStatus, containerStatus} {
			var named struct{ Cgroups map[string]string }
			if json.Unmarshal(text, &named); len(named.Cgroups) > 0 {
				t.Skip("paths of the record may be the test machine's")
			}
		}
		synctest.Test(t, func(t *testing.T) {
			m := ocitest.NewMachine(t)
			for path, text := range map[string][]byte{
				filepath.Join(m.Root, "sandboxes", "5a", "record.json"): sandbox, filepath.Join(m.State, "sandboxes", "5a", "status.json"): sandboxStatus,
				filepath.Join(m.Root, "containers", "c0", "record.json"): container, filepath.Join(m.State, "containers", "c0", "status.json"): containerStatus,
				filepath.Join(m.Root, "containers", "c0", "exit.json"): exit,
			} {
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			b := &bed{T: t, m: m}
			b.r = m.Open(t)
			synctest.Wait()
			for _, c := range b.r.Containers() {
				_, _ = c.Status(), c.Config()
				_ = c.Start(t.Context()) // may fail
				if err := c.Stop(t.Context(), unix.SIGTERM, time.Second); err != nil {
					t.Errorf("stop: %v", err)
				}
				if err := c.Remove(t.Context()); err != nil {
					t.Errorf("remove: %v", err)
				}
			}
			for _, sb := range b.r.Sandboxes() {
				if st := sb.State(); st != oci.SandboxNotReady && st != oci.SandboxRemoving {
					b.ok(sb.BeginStop())
					b.ok(sb.Unpin(t.Context()))
					b.ok(sb.Stopped())
				}
				if err := sb.Remove(t.Context()); err != nil {
					t.Errorf("remove sandbox: %v", err)
				}
			}
			if left := append(m.Left(), m.Known()...); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
			b.sb = b.sandbox("")
			c := b.start("sleep", "for-ever")
			b.ok(c.Stop(t.Context(), unix.SIGTERM, time.Second))
			if err := b.r.Close(); err != nil {
				t.Error(err)
			}
			b.m.Reboot()
		})
	})
}
