package rootfs_test

import (
	"testing"

	"github.com/crisp-cri/crisp/test/imagetest"
)

func TestMain(m *testing.M) { imagetest.Main(m) }
