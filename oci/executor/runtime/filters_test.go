package runtime

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/executor/fastinit"
)

// A profile that could not be compiled for want of descriptors is compiled when there are some.
func TestFilterIsTriedAgain(t *testing.T) {
	profile := &configs.Seccomp{DefaultAction: configs.Allow, Syscalls: []*configs.Syscall{{Name: "mount", Action: configs.Errno}}}
	b := &builtins{log: slog.New(slog.DiscardHandler)}
	profile = b.share(&sharedProfile{config: profile})
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Cur: 3, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, err := b.filterOf(profile)
	if rerr := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); rerr != nil {
		t.Fatal(rerr)
	}
	if !errors.Is(err, fastinit.ErrUnsupported) {
		t.Fatalf("without descriptors: %v", err)
	}
	if program, err := b.filterOf(profile); err != nil || program == nil {
		t.Errorf("with descriptors: %v, %v", program, err)
	}
}
