package oci_test

import (
	"testing"

	"github.com/crisp-cri/crisp/test/ocitest"
)

// The fake executor passes the same suite as the real one.
func TestSuiteOnFake(t *testing.T) {
	ocitest.Suite(t, func(t *testing.T) ocitest.Node {
		m := ocitest.NewMachine(t)
		t.Cleanup(func() {
			if left := append(m.Left(), m.Known()...); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
		return m
	})
}
