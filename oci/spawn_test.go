package oci

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
)

// The error has the reason why an executor exited at once: the log may be gone with its
// directory by the time the error is read.
func TestExecutorThatEndsAtOnceSaysWhy(t *testing.T) {
	for name, tt := range map[string]struct{ script, want string }{
		"with a reason": {"echo first >&2; echo the disk is on fire >&2; exit 1", "executor.log ends with: the disk is on fire"},
		"much":          {"head -c 9999 /dev/zero | tr '\\0' x >&2; echo >&2; echo at last >&2; exit 1", "ends with: at last"},
		"without one":   {"exit 1", "it wrote nothing into"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			program := filepath.Join(dir, "executor")
			if err := os.WriteFile(program, []byte("#!/bin/sh\n"+tt.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "executor.log"), []byte("of the one before\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			s := &spawner{path: program, state: dir, log: slog.New(slog.NewTextHandler(t.Output(), nil))}
			_, err := s.dial(t.Context())
			if !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "exit status 1") {
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
		})
	}
}
