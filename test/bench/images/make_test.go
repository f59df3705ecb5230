package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
)

// The image must be the same on every machine, or their figures cannot be compared.
func TestBigLayerIsTheSameEachTime(t *testing.T) {
	const want = 10 * filesPerDir
	var two [2]bytes.Buffer
	for i := range two {
		if err := bigLayer(tar.NewWriter(&two[i]), 3, want); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(two[0].Bytes(), two[1].Bytes()) {
		t.Error("two layers of one seed differ")
	}
	files, dirs := 0, 0
	for r := tar.NewReader(&two[0]); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // the test did not close the writer
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeDir {
			dirs++
		} else {
			files++
		}
	}
	if files != want || dirs != 10 {
		t.Errorf("the layer has %d files in %d directories", files, dirs)
	}
}

func TestTextHasTheSize(t *testing.T) {
	text := newText(rand.New(rand.NewPCG(1, 2)))
	for _, size := range []int{0, 1, 7, 4096} {
		if got := text.append(nil, size); len(got) != size {
			t.Errorf("text of %d bytes has %d", size, len(got))
		}
	}
}
