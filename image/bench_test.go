package image_test

import (
	"context"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/image"
)

func TestBig(t *testing.T) {
	ref := os.Getenv("BIGREF")
	if ref == "" {
		t.Skip()
	}
	dir, _ := os.MkdirTemp(os.Getenv("BIGDIR"), "bigtest")
	defer os.RemoveAll(dir)
	rec, err := checkpoint.Open(dir, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	s, err := image.Open(context.Background(), image.Options{Root: dir + "/images", State: dir + "/state", Records: rec, RegistriesConf: "/opt/peers/registries.conf", ProgressTimeout: time.Minute * 5, MaxParallel: 8})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		var a, b syscall.Rusage
		syscall.Getrusage(0, &a)
		begin := time.Now()
		img, err := s.Pull(context.Background(), ref, nil)
		took := time.Since(begin)
		syscall.Getrusage(0, &b)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(took, "user", time.Duration(b.Utime.Nano()-a.Utime.Nano()), "sys", time.Duration(b.Stime.Nano()-a.Stime.Nano()), img.Size, s.FsInfo(), img.Tags, img.Digests)
		begin = time.Now()
		root, err := s.Mount(context.Background(), "k", img.ID)
		if err != nil {
			t.Fatal(err)
		}
		t.Log("mount", time.Since(begin))
		begin = time.Now()
		ents, _ := os.ReadDir(root)
		t.Log(len(ents))
		if err := s.Unmount(context.Background(), "k", true); err != nil {
			t.Fatal(err)
		}
		t.Log("unmount", time.Since(begin))
		begin = time.Now()
		if err := s.Remove(context.Background(), img.ID); err != nil {
			t.Fatal(err)
		}
		t.Log("remove", time.Since(begin))
	}
	s.Close()
}
