package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A result is the result of a step.
type result struct {
	Step            string
	Took            time.Duration
	Err             string // "" = it passed
	Passed          int    // tests
	Failed, Skipped []string
}

// pack writes the files of dir onto the disk as a tar, which needs no file system.
func pack(dir, disk string) error {
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		return err
	}
	return errors.Join(w.Close(), f.Sync())
}

// collect unpacks what pack has written, and returns an error with the failed steps.
func collect(disk, dir string) error {
	f, err := os.Open(disk)
	if err != nil {
		return err
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("results of the node: %w", err)
		}
		path := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return fmt.Errorf("results of the node: %s: %w", h.Name, err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if errors.Is(err, fs.ErrNotExist) {
		console, _ := os.ReadFile(filepath.Join(dir, "console.log"))
		return fmt.Errorf("the node brought out no results; the end of its console:\n%s", tail(string(console), 20))
	}
	if err != nil {
		return err
	}
	var all []result
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	return judge(all)
}

func judge(results []result) error {
	var failed []string
	for _, r := range results {
		verdict := "ok  "
		if r.Err != "" {
			verdict = "FAIL"
			failed = append(failed, fmt.Sprintf("%s: %s", r.Step, r.Err))
		}
		fmt.Printf("%s %-14s %6v  %d passed, %d failed, %d skipped\n", verdict, r.Step, r.Took.Round(time.Second), r.Passed, len(r.Failed), len(r.Skipped))
		for _, s := range r.Skipped {
			fmt.Println("       skipped", s)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d steps failed:\n  %s", len(failed), len(results), strings.Join(failed, "\n  "))
	}
	return nil
}
