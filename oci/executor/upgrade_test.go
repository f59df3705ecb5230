package executor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

// An older executor neither takes over what a newer one has saved nor misreads it: it
// reports why and exits, and crispd hands the containers to the next executor.
func TestResumeRefusesNewerState(t *testing.T) {
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, fmt.Appendf(nil, `{"Version":%d,"Listener":-1,"Lock":-1,"Session":"s"}`, savedVersion+1)); err != nil {
		t.Fatal(err)
	}
	t.Setenv(resumeEnv, strconv.Itoa(fd))
	if _, err := Resume(Options{}); !errors.Is(err, fault.WrongState) || !strings.Contains(err.Error(), fmt.Sprint("version ", savedVersion+1)) {
		t.Errorf("resume: %v", err)
	}
	if Resuming() {
		t.Error("children inherit " + resumeEnv + "=" + os.Getenv(resumeEnv))
	}
}
