package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A shim's answer to start, in all its forms.
func TestBootstrap(t *testing.T) {
	result := func(version int32, address, protocol string) string {
		return string(marshal(t, &bootapi.BootstrapResult{Version: version, Address: address, Protocol: protocol, Metadata: map[string]string{"a": "b"}}))
	}
	for _, tt := range []struct {
		name, out string
		want      bootstrap
		err       string
	}{
		{name: "address", out: "unix:///run/containerd/s/abc", want: bootstrap{2, "/run/containerd/s/abc", "ttrpc"}},
		{name: "address with a line's end", out: "unix:///run/s\n", want: bootstrap{2, "/run/s", "ttrpc"}},
		{name: "path", out: "/run/s", want: bootstrap{2, "/run/s", "ttrpc"}},
		{name: "JSON", out: `{"version":2,"address":"unix:///run/s","protocol":"ttrpc"}`, want: bootstrap{2, "/run/s", "ttrpc"}},
		{name: "JSON 3", out: "\n{\"version\":3,\"address\":\"unix:///run/s\",\"protocol\":\"TTRPC\",\"later\":[{}]}\n", want: bootstrap{3, "/run/s", "TTRPC"}},
		{name: "message", out: result(3, "unix:///run/s", "ttrpc"), want: bootstrap{3, "/run/s", "ttrpc"}},
		{name: "message 2", out: result(2, "unix:///run/s", "ttrpc"), want: bootstrap{2, "/run/s", "ttrpc"}},
		{name: "nothing", out: " \n", err: "it is empty"},
		{name: "garbage", out: "\xff\xfe\x00", err: "it is neither text nor a message"},
		{name: "words", out: "panic: no", err: `the address "panic: no" is no path of a unix socket`},
		{name: "two lines", out: "unix:///run/s\nand more", err: "is no path"},
		{name: "NUL", out: "unix:///run/s\x00", err: "is no path"},
		{name: "vsock", out: "vsock://3:1024", err: `"vsock://3:1024" is no path`},
		{name: "relative", out: "unix://s", err: "is no path"},
		{name: "path that no address has", out: "unix:///" + strings.Repeat("x", maxPath), err: "is no path"},
		{name: "gRPC", out: `{"version":3,"address":"unix:///run/s","protocol":"grpc"}`, err: `the shim wants the protocol "grpc", crisp has ttrpc alone`},
		{name: "gRPC's message", out: result(3, "unix:///run/s", "grpc"), err: `the protocol "grpc"`},
		{name: "version 1", out: `{"version":1,"address":"unix:///run/s","protocol":"ttrpc"}`, err: "version 1 of the Task API is not known"},
		{name: "version 4", out: result(4, "unix:///run/s", "ttrpc"), err: "version 4 of the Task API is not known"},
		{name: "cut JSON", out: `{"version":3,`, err: "unexpected end of JSON input"},
		{name: "cut message", out: result(3, "unix:///run/s", "ttrpc")[:9], err: "field 2 is longer than its message"},
	} {
		got, err := parseBootstrap([]byte(tt.out))
		if text := fmt.Sprint(err); (err != nil) != (tt.err != "") || !strings.Contains(text, tt.err) {
			t.Errorf("%s: the error is %v, want %s", tt.name, err, tt.err)
		}
		if err == nil && got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// script returns a program that runs a script of the shell, and its bundle.
func script(t *testing.T, text string) Program {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "shim")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return Program{Path: path, Namespace: "k8s.io", ID: "c1", Bundle: dir, Events: "/run/events"}
}

// The program gets what shims of all ages read: arguments, the environment and stdin.
func TestStartCommand(t *testing.T) {
	p := script(t, `echo "$PWD:$*" >called; env | grep -E '^(TTRPC_ADDRESS|GRPC_ADDRESS|NAMESPACE|MAX_SHIM_VERSION|EXTRA)=' | sort >>called
cat >stdin; echo warning >&2; echo '{"version":3,"address":"unix:///run/x","protocol":"ttrpc"}'`)
	p.Env, p.Options = []string{"EXTRA=1"}, &Any{"t", nil}
	a, err := Start(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Address{Program: p.Path, Namespace: "k8s.io", Path: "/run/x", Version: 3}); *a != want {
		t.Errorf("the address is %+v, want %+v", *a, want)
	}
	got, err := os.ReadFile(filepath.Join(p.Bundle, "called"))
	if err != nil {
		t.Fatal(err)
	}
	want := p.Bundle + ":-namespace k8s.io -address /run/events -publish-binary /bin/true -id c1 start\n" +
		"EXTRA=1\nGRPC_ADDRESS=/run/events\nMAX_SHIM_VERSION=2\nNAMESPACE=k8s.io\nTTRPC_ADDRESS=/run/events\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("the call (-want +got):\n%s", diff)
	}
	stdin, err := os.ReadFile(filepath.Join(p.Bundle, "stdin"))
	if err != nil || string(stdin) != string(p.params()) {
		t.Errorf("stdin is %x (%v)", stdin, err)
	}
}

// A program that fails is named with what it printed; too long an answer and one that hangs are
// errors, and what it has started ends with it.
func TestStartFails(t *testing.T) {
	for _, tt := range []struct{ name, script, want string }{
		{"exit", "echo out; echo no such runtime >&2; exit 3", "exit status 3: no such runtime out"},
		{"no address", "exit 0", "answer to start: it is empty"},
		{"long answer", "head -c 100000 /dev/zero", "the answer is longer than 65536 bytes"},
		{"long complaint", "head -c 10000000 /dev/zero | tr '\\0' x >&2; exit 1", "exit status 1: xxx"},
	} {
		p := script(t, tt.script)
		_, err := Start(t.Context(), p)
		if text := fmt.Sprint(err); err == nil || !strings.HasPrefix(text, "shim "+p.Path+": ") || !strings.Contains(text, tt.want) || len(text) > 6000 {
			t.Errorf("%s: the error is %.300v, want %s", tt.name, err, tt.want)
		}
	}
	if _, err := Start(t.Context(), Program{Path: "shim", ID: "c"}); !errors.Is(err, fault.Invalid) {
		t.Errorf("a relative path: the error is %v", err)
	}
	if _, err := Start(t.Context(), Program{Path: "/no/such", ID: "c"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: the error is %v", err)
	}
}

func TestStartHangs(t *testing.T) {
	p := script(t, "sleep 1000 & echo $! >child; wait")
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error)
	go func() {
		_, err := Start(ctx, p)
		errs <- err
	}()
	child := readWhenThere(t, filepath.Join(p.Bundle, "child"))
	cancel()
	if err := <-errs; !errors.Is(err, fault.Unavailable) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "start of container c1: no answer in time") {
		t.Errorf("the error is %v", err)
	}
	for alive := true; alive; time.Sleep(10 * time.Millisecond) { // until it is reaped
		stat, err := os.ReadFile("/proc/" + child + "/stat")
		alive = err == nil && !strings.Contains(string(stat), ") Z ")
	}
}

// A shim that keeps the output open, as a daemon should not, does not hinder the start.
func TestStartLeavesOutputOpen(t *testing.T) {
	p := script(t, "echo unix:///run/x; sleep 1000 & echo $! >child")
	a, err := Start(t.Context(), p)
	if err != nil || a.Path != "/run/x" || a.Version != 2 {
		t.Errorf("the address is %+v (%v)", a, err)
	}
	if out, err := exec.Command("kill", readWhenThere(t, filepath.Join(p.Bundle, "child"))).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func readWhenThere(t *testing.T, path string) string {
	t.Helper()
	for {
		if data, err := os.ReadFile(path); err == nil && strings.HasSuffix(string(data), "\n") {
			return strings.TrimSpace(string(data))
		}
		if t.Context().Err() != nil {
			t.Fatal(path)
		}
		time.Sleep(time.Millisecond)
	}
}

// What is left of a container whose shim died is removed by the program.
func TestDelete(t *testing.T) {
	exit := filepath.Join(t.TempDir(), "exit")
	if err := os.WriteFile(exit, marshal(t, &taskv3.DeleteResponse{Pid: 9, ExitStatus: 137, ExitedAt: timestamppb.New(at)}), 0o600); err != nil {
		t.Fatal(err)
	}
	p := script(t, `echo "$*" >called; cat `+exit)
	got, err := p.Delete(t.Context())
	if diff := cmp.Diff(&Exit{PID: 9, Status: 137, At: at}, got); err != nil || diff != "" {
		t.Errorf("the exit (-want +got), %v:\n%s", err, diff)
	}
	called, _ := os.ReadFile(filepath.Join(p.Bundle, "called"))
	if want := "-namespace k8s.io -address /run/events -publish-binary /bin/true -id c1 -bundle " + p.Bundle + " delete\n"; string(called) != want {
		t.Errorf("it was called with %s, want %s", called, want)
	}
	if _, err := script(t, "echo words").Delete(t.Context()); err == nil || !strings.Contains(err.Error(), "malformed message") {
		t.Errorf("an answer of words: the error is %v", err)
	}
}
