// Command journal gives a runtime that is to be measured an ext4 with a journal, in a file, until it gets SIGTERM.
//
//	journal -file FILE [-size 24G] DIR
//
// It makes the file system anew, without options: the journal is mkfs.ext4's own, ordered, with a commit every five seconds. DIR is
// where it is mounted; the runtime's data belongs there. The file should be on the disk that the other runtimes use: syncs and commits
// go to that disk. On SIGTERM the file system is unmounted and the file removed. The loop device ends with the mount.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func main() {
	file := flag.String("file", "", "`file` that has the file system; it must not exist")
	size := flag.String("size", "24G", "`size` of the file system")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *file, *size, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "journal:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, file, size, dir string) (err error) {
	if file == "" || dir == "" {
		return errors.New("-file or the directory is missing")
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(file)) }()
	if err := f.Close(); err != nil {
		return err
	}
	for _, step := range [][]string{
		{"truncate", "-s", size, file},
		// Everything is made now: nothing is initialized during the measurement.
		{"mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", file},
	} {
		if out, err := exec.CommandContext(ctx, step[0], step[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%q: %w: %s", step, err, out)
		}
	}
	// Without ctx: a mount(8) that is killed may have mounted.
	if out, err := exec.Command("mount", "-o", "loop", file, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("mount %s: %w: %s", dir, err, out)
	}
	fmt.Println("mounted at", dir)
	<-ctx.Done()
	if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("umount %s: %w: %s", dir, err, out)
	}
	return nil
}
