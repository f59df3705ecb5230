package imagetest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/erofs"
	"github.com/crisp-cri/crisp/test/testenv"
)

// Layers is the form of the layers of stores that tests open, see image.Options. CRISP_LAYERS in the
// environment (erofs, directories) chooses it.
var Layers = os.Getenv("CRISP_LAYERS")

// IsEROFS reports whether the layers of stores that tests open are EROFS file systems.
func IsEROFS() bool { return Layers == image.EROFS }

// Main runs the tests of a package with layers as EROFS file systems, if the kernel can have them,
// and again with layers as directories, unless the environment has chosen. Benchmarks and fuzz
// targets run once.
func Main(m *testing.M) {
	flag.Parse()
	if Layers != "" {
		os.Exit(m.Run())
	}
	err := probe()
	if err == nil {
		Layers = image.EROFS
		if code := m.Run(); code != 0 {
			fmt.Println("with layers as EROFS file systems")
			os.Exit(code)
		}
	} else {
		fmt.Println("layers are not tried as EROFS file systems:", err)
	}
	Layers = ""
	if err != nil || flag.Lookup("test.bench").Value.String() == "" && flag.Lookup("test.fuzz").Value.String() == "" {
		if code := m.Run(); code != 0 {
			fmt.Println("with layers as directories")
			os.Exit(code)
		}
	}
}

func probe() error {
	if !testenv.Root() {
		return errors.New("it needs root")
	}
	dir, err := os.MkdirTemp("", "probe-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return erofs.Probe(dir)
}
