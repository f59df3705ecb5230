package image_test

import (
	"testing"

	"github.com/crisp-cri/crisp/image/imagetest"
)

func TestMain(m *testing.M) { imagetest.Main(m) }
