package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/crisp-cri/crisp/test/testns"
)

// A binaries has the paths of the programs under test.
type binaries struct {
	dir     string
	testbin string // the program of the test containers
	archive string // its image, as a Docker archive
}

// buildOnce finds the programs in CRISP_BIN (make test sets it) or in the tree's bin
// directory, and makes the test image.
var buildOnce = func() func(testing.TB) binaries {
	var once sync.Once
	var b binaries
	var err error
	return func(t testing.TB) binaries {
		once.Do(func() { b, err = build() })
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}()

func build() (b binaries, err error) {
	b.dir = os.Getenv("CRISP_BIN")
	if b.dir == "" {
		if b.dir, err = filepath.Abs("../bin"); err != nil {
			return b, err
		}
	}
	if _, err := os.Stat(filepath.Join(b.dir, "crispd")); err != nil {
		return b, fmt.Errorf("the programs are not built (%w): run make all", err)
	}
	b.archive = filepath.Join(scratch, "testbin.tar")
	// Without Go, testbin is in CRISP_BIN.
	if b.testbin = filepath.Join(b.dir, "testbin"); !testenv.Exists(b.testbin) {
		b.testbin = filepath.Join(scratch, "testbin")
	}
	if testenv.Exists(b.archive) {
		return b, nil // built once for all tests
	}
	if !testenv.Exists(b.testbin) {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", b.testbin, "github.com/crisp-cri/crisp/test/testbin")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return b, fmt.Errorf("build testbin: %w\n%s", err, out)
		}
	}
	return b, writeArchive(b.archive, b.testbin)
}

// scratch is the directory of files that all tests share.
var scratch = os.Getenv("CRISP_TEST_SCRATCH")

func TestMain(m *testing.M) {
	if strings.HasPrefix(os.Getenv("MODEL_PEER"), "/") {
		os.Setenv("CRISP_TEST_NAMESPACES", "off") // it pulls from the machine's loopback
	}
	testns.Main(m, testns.Options{
		Prepare: func() ([]string, func(), error) {
			var err error
			if scratch, err = os.MkdirTemp("", "crisp-test-"); err != nil {
				return nil, nil, err
			}
			if os.Getuid() == 0 {
				build() // each test that needs the programs reports the error
			}
			return []string{"CRISP_TEST_SCRATCH=" + scratch}, func() { os.RemoveAll(scratch) }, os.Chmod(scratch, 0o711)
		},
		Subtests: map[string][]string{"TestScript": scripts(), "TestLayersAsDirectories": withDirectories},
		First:    []string{"TestExecutorThatStandsStillIsReplaced", "TestAgentLogRotation", "TestAgentEnds", "TestAgentKills"},
	})
}

// scripts returns the names of the transcripts in script/.
func scripts() []string {
	paths, _ := filepath.Glob("script/*.txtar")
	for i, p := range paths {
		paths[i] = strings.TrimSuffix(filepath.Base(p), ".txtar")
	}
	return paths
}
