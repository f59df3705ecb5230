package stdio

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/logread"
	"github.com/crisp-cri/crisp/oci/wire"
)

// An executor may be killed between any two instructions. Whatever its last one was, its
// successor completes the log: each line is in it once.
func TestInHand(t *testing.T) {
	const before, text = "before\n", "one\ntwo\nthree\nand a half"
	records := func(p string) string { return string(crilog.Append(nil, time.Now(), crilog.Stdout, []byte(p), 100)) }
	// reads simulates a read(2) of the first n bytes of text.
	reads := func(h *buffer, n int) { copy(h.ask(len(text)), text[:n]) }
	writing := func(h *buffer, log *os.File) {
		reads(h, len(text))
		h.got(len(text))
		h.upto = len(text)
		var st unix.Stat_t
		if err := unix.Fstat(int(log.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		h.Writing(st.Ino, st.Size)
	}
	for _, last := range []struct {
		name string
		do   func(h *buffer, log *os.File)
		want string // after the line before
		tty  bool
	}{
		{name: "taken", do: func(*buffer, *os.File) {}},
		{name: "read(2) was about to begin", do: func(h *buffer, _ *os.File) { reads(h, 0) }},
		{name: "read(2) had not returned", do: func(h *buffer, _ *os.File) { reads(h, len(text)) }, want: text},
		{name: "read(2) of a terminal had not returned", do: func(h *buffer, _ *os.File) { reads(h, 8) }, want: "one\ntwo\n", tty: true},
		{name: "read", do: func(h *buffer, _ *os.File) { reads(h, len(text)); h.got(len(text)) }, want: text},
		{name: "was about to write", do: writing, want: text},
		{name: "had written a part", do: func(h *buffer, log *os.File) { writing(h, log); log.WriteString(records(text)[:60]) }, want: text},
		{name: "had written some lines", do: func(h *buffer, log *os.File) { writing(h, log); log.WriteString(records("one\ntwo\n")) }, want: text},
		{name: "had written", do: func(h *buffer, log *os.File) { writing(h, log); log.WriteString(records(text)) }, want: text},
		{name: "had said that it had", do: func(h *buffer, log *os.File) { writing(h, log); log.WriteString(records(text)); h.Written(h.upto) }, want: text},
		{name: "was about to say that all but a line's beginning was written", do: func(h *buffer, log *os.File) {
			writing(h, log)
			h.upto = len("one\ntwo\nthree\n")
			log.WriteString(records(text[:h.upto]))
			h.region.Store(span(lineStart+h.upto, lineStart+len(text))) // and not the size, as the last of Written
		}, want: text},
		{name: "had kept a line's beginning", do: func(h *buffer, log *os.File) {
			writing(h, log)
			h.upto = len("one\ntwo\nthree\n")
			log.WriteString(records(text[:h.upto]))
			h.Written(h.upto)
			h.keep()
			copy(h.ask(5), " more")
		}, want: text + " more"},
		{name: "had put it back", do: func(h *buffer, log *os.File) {
			writing(h, log)
			log.WriteString(records(text))
			h.Written(h.upto)
			h.put(t)
		}, want: text},
		{name: "a terminal's end of line", do: func(h *buffer, _ *os.File) { copy(h.ask(9), "one\r\ntwo\r") }, want: "one\ntwo", tty: true},
	} {
		t.Run(last.name, func(t *testing.T) {
			state := t.TempDir()
			path := filepath.Join(state, "0.log")
			if err := os.WriteFile(path, []byte(records(before)), 0o600); err != nil {
				t.Fatal(err)
			}
			log, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			killed := buffersOf(t, state)
			h := killed.take("c1", &output{stream: crilog.Stdout, tty: last.tty})
			last.do(h, log)
			other := killed.take("c2", &output{stream: crilog.Stderr})
			copy(other.ask(3), "two")

			// The successor may be killed as well before it adopts, and so may the next.
			buffersOf(t, state)
			hs := buffersOf(t, state)
			hs.Complete(wire.Settings{ID: "c1", LogPath: path, LogMaxLine: 100})
			hs.Complete(wire.Settings{ID: "c1", LogPath: path, LogMaxLine: 100})
			if got := logged(t, path); got != before+last.want {
				t.Errorf("the log has %q, want %q", got, before+last.want)
			}
			if left := buffersOf(t, state).remaining; len(left) != 1 || left[0].container() != "c2" || left[0].stream() != crilog.Stderr || string(left[0].unlogged()) != "two" {
				t.Errorf("output of c2 is left: %+v", left)
			}
			hs.Forget("c2")
			if left := buffersOf(t, state).remaining; len(left) != 0 {
				t.Errorf("output is left: %+v", left)
			}
		})
	}
}

// put puts a buffer when the test does not need its buffers.
func (h *buffer) put(*testing.T) { (&Buffers{bufferFile: h.of}).put(h) }

func buffersOf(t *testing.T, state string) *Buffers {
	t.Helper()
	hs, err := OpenBuffers(state, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hs.file.Close(); unix.Munmap(hs.memory) })
	return hs
}

// logged returns what a log has of stdout.
func logged(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for line := range bytes.Lines(data) {
		r, err := logread.Parse(line)
		if err != nil || !bytes.HasSuffix(line, []byte("\n")) {
			t.Errorf("line %q: %v", line, err)
		}
		text.Write(r.Content)
		if !r.Partial {
			text.WriteByte('\n')
		}
	}
	return text.String()
}

// A log may have been rotated, renamed and created anew, before the executor was killed.
func TestInHandOfARotatedLog(t *testing.T) {
	state := t.TempDir()
	path := filepath.Join(state, "0.log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h := buffersOf(t, state).take("c1", &output{stream: crilog.Stdout})
	copy(h.ask(4), "one\n")
	h.got(4)
	h.Writing(1, 0)
	buffersOf(t, state).Complete(wire.Settings{ID: "c1", LogPath: path})
	if got := logged(t, path); got != "one\n" {
		t.Errorf("the log has %q", got)
	}
}

// More streams than there are buffers are still read, and silent ones take no memory.
func TestManyHands(t *testing.T) {
	hs := buffersOf(t, t.TempDir())
	var all []*buffer
	for i := range 2 * maxBuffers {
		h := hs.take("c1", &output{stream: crilog.Stdout})
		if lasting := h.index >= 0; lasting != (i < maxBuffers) {
			t.Errorf("buffer %d has a place in the file: %v", i, lasting)
		}
		copy(h.ask(chunk), bytes.Repeat([]byte{'x'}, chunk))
		if h.got(chunk); !h.full() || len(h.unlogged()) != chunk {
			t.Fatalf("buffer %d holds %d bytes", i, len(h.unlogged()))
		}
		all = append(all, h)
	}
	for _, h := range all {
		hs.put(h)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(hs.file.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if most := int64(buffersAt + (resident+1)*bufferSize); st.Blocks*512 > most {
		t.Errorf("the file takes %d bytes, want %d at most", st.Blocks*512, most)
	}
	if h := hs.take("c1", &output{stream: crilog.Stdout}); h.index < 0 {
		t.Error("no buffer is free after all were put back")
	}
}

// If the file is removed, the next executor finds what is in buffers from then on. Output that was in
// buffers is not affected.
func TestHandsOfARemovedFile(t *testing.T) {
	state := t.TempDir()
	hs := buffersOf(t, state)
	fill := func(h *buffer, text string) {
		copy(h.ask(len(text)), text)
		h.got(len(text))
	}
	before := hs.take("c1", &output{stream: crilog.Stdout})
	fill(before, "abc")
	old := hs.bufferFile
	if err := os.Remove(hs.path); err != nil {
		t.Fatal(err)
	}
	// What is left of an attempt on a full disk.
	if err := os.WriteFile(hs.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := hs.Look(); err != nil || len(again) != 1 {
		t.Fatalf("put back %q, %v", again, err)
	}
	if again, err := hs.Look(); err != nil || len(again) != 0 {
		t.Errorf("put back again: %q, %v", again, err)
	}
	fill(before, "def")
	if got := string(before.unlogged()); got != "abcdef" {
		t.Errorf("it holds %q", got)
	}
	fill(hs.take("c2", &output{stream: crilog.Stdout}), "xyz")
	if left := buffersOf(t, state).remainingOf("c2"); len(left) != 1 || string(left[0].unlogged()) != "xyz" {
		t.Errorf("the next executor finds %+v", left)
	}
	hs.put(before)
	if old.file.Fd() != ^uintptr(0) {
		t.Error("the removed file is kept open for no reason")
	}
	if len(hs.free) != maxBuffers-1 {
		t.Errorf("%d buffers are free, want all but one", len(hs.free))
	}
}

// After many containers have printed at the same time, a single one that continues does not cause
// an allocation for each line.
func TestHandsWithMemoryAreTakenFirst(t *testing.T) {
	hs := buffersOf(t, t.TempDir())
	var all []*buffer
	for range resident + 3 {
		all = append(all, hs.take("c1", &output{stream: crilog.Stdout}))
	}
	for _, h := range all {
		hs.put(h)
	}
	for range 2 {
		h := hs.take("c1", &output{stream: crilog.Stdout})
		if h.index >= resident {
			t.Errorf("buffer %d is taken, which keeps no memory while it is free", h.index)
		}
		hs.put(h)
	}
}

// The file of an executor with another format is not touched, and a damaged file is harmless.
func TestHandsOfAnotherVersion(t *testing.T) {
	state := t.TempDir()
	path := filepath.Join(state, "executor.inhand")
	newer := append([]byte("crisp in hand 2\n"), make([]byte, fileSize)...)
	if err := os.WriteFile(path, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBuffers(state, slog.Default()); err == nil || !strings.Contains(err.Error(), "another version") {
		t.Errorf("opened with %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, newer) {
		t.Errorf("it was changed: %d bytes, %.20q, %v; it had %d", len(got), got, err, len(newer))
	}
	damaged := append([]byte(fileMagic), bytes.Repeat([]byte{0xff}, fileSize)...)
	if err := os.WriteFile(path, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	hs := buffersOf(t, state)
	if len(hs.remaining) != 0 {
		t.Errorf("of a damaged file this is left: %+v", hs.remaining)
	}
	h := hs.take("c1", &output{stream: crilog.Stdout})
	copy(h.ask(3), "abc")
	if h.got(3); string(h.unlogged()) != "abc" {
		t.Errorf("it holds %q", h.unlogged())
	}
}
