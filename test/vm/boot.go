package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// startLimit bounds the time from the emulator's start to the first step.
	startLimit = 5 * time.Minute
	// resultsSize is the size of the disk for the logs.
	resultsSize = 256 << 20
	memory      = "3072" // MiB
)

// run boots the node once and copies its results. The error names the failed steps, or says why the
// results are unknown.
func (b boot) run(ctx context.Context, d disk, p *payload, steps []string, work, results string) error {
	if err := os.MkdirAll(results, 0o755); err != nil {
		return err
	}
	second, third := filepath.Join(work, "payload.img"), filepath.Join(work, "results.img")
	size, err := sizeOf(p.dir)
	if err != nil {
		return err
	}
	os.Remove(second)
	if err := format(ctx, p.dir, second, fmt.Sprintf("%dM", size*5/4>>20+64)); err != nil {
		return err
	}
	if err := os.WriteFile(third, nil, 0o644); err != nil {
		return err
	}
	if err := os.Truncate(third, resultsSize); err != nil {
		return err
	}
	limit := startLimit
	for _, s := range b.steps {
		if slices.Contains(steps, s.name) {
			limit += s.limit
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", accelerator(ctx, d), "-cpu", "max", "-m", memory, "-smp", "2",
		"-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-nic", "none",
		"-kernel", d.kernel, "-initrd", d.initrd,
		"-drive", "file="+d.image+",if=virtio,format=raw,snapshot=on",
		"-drive", "file="+second+",if=virtio,format=raw,snapshot=on",
		"-drive", "file="+third+",if=virtio,format=raw,cache=unsafe",
		"-device", "virtio-rng-pci",
		"-append", "root=/dev/vda rw console=ttyS0 panic=-1 quiet mitigations=off systemd.show_status=0 "+b.append)
	cmd.Env = append(os.Environ(), "TMPDIR="+work) // directory of the snapshots
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	console, err := os.Create(filepath.Join(results, "console.log"))
	if err != nil {
		return err
	}
	defer console.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	fmt.Printf("boot %s: %s\n", b.name, strings.Join(cmd.Args[:3], " "))
	if err := cmd.Start(); err != nil {
		return err
	}
	show(io.TeeReader(out, console))
	err = cmd.Wait()
	switch ctx.Err() {
	case context.DeadlineExceeded:
		err = fmt.Errorf("the node did not end within %v", limit)
	case context.Canceled:
		err = errors.New("it was ended from outside")
	}
	fmt.Printf("boot %s: the emulator took %v of CPU time\n", b.name, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Round(time.Second))
	return errors.Join(collect(third, results), err)
}

// show prints the node's console, except for the kernel's lines.
func show(console io.Reader) {
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		if _, text, ok := strings.Cut(line, mark); ok {
			fmt.Println(text)
		}
	}
	io.Copy(io.Discard, console)
}

// accelerator returns kvm if a kernel boots with it: on some machines the device exists and hangs.
// The kernel gets no root file system, panics, and so ends the emulator.
func accelerator(ctx context.Context, d disk) string {
	const emulated = "tcg,thread=multi"
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err != nil {
		return emulated
	} else {
		f.Close()
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "kvm", "-cpu", "max", "-m", "512", "-display", "none",
		"-nic", "none", "-no-reboot", "-kernel", d.kernel, "-append", "panic=-1").Run()
	if err != nil {
		return emulated
	}
	return "kvm"
}

// sizeOf returns the size of the files below dir, in bytes.
func sizeOf(dir string) (int64, error) {
	var sum int64
	err := filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil {
			sum += (info.Size() + 4095) &^ 4095
		}
		return err
	})
	return sum, err
}
