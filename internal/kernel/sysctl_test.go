package kernel

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/thread"
	"github.com/crisp-cri/crisp/test/testenv"
)

// Parameters are the calling thread's, however often our procfs is replaced, and what a thousand
// namespaces leave in one is in none that others look into.
func TestSysctlIsOfTheThread(t *testing.T) {
	testenv.NeedRoot(t, "it makes network namespaces")
	const path = "net/ipv4/ip_default_ttl"
	ours := Sysctl(path)
	var before, proc unix.Stat_t
	instance := func(st *unix.Stat_t) {
		f, err := openSysctl(path, unix.O_RDONLY)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Fstat(int(f.Fd()), st); err != nil {
			t.Fatal(err)
		}
	}
	instance(&before)
	if err := unix.Stat("/proc/sys", &proc); err != nil {
		t.Fatal(err)
	}
	if before.Dev == proc.Dev && Probe().AtLeast(5, 8) && newProc() != nil {
		t.Error("parameters are looked up in /proc")
	}
	for i := range ownLookups/3 + 1 {
		ttl := fmt.Sprint(1 + i%200)
		if err := thread.Run(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			if err := SetSysctl(path, ttl); err != nil {
				return err
			}
			if got := Sysctl(path); got != ttl {
				return fmt.Errorf("%s is %q in namespace %d, want %q", path, got, i, ttl)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if got := Sysctl(path); got != ours {
			t.Fatalf("%s is %q in our namespace, was %q", path, got, ours)
		}
	}
	var after unix.Stat_t
	if instance(&after); before.Dev != proc.Dev && after.Ino == before.Ino && after.Dev == before.Dev {
		t.Errorf("the procfs is the same after %d lookups", ownLookups)
	}
}
