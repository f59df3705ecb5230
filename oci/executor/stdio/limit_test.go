package stdio

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A dying buffer is one whose executor is killed at a given moment of a write to the log.
type dying struct {
	*buffer
	moments int // that are left
}

type killed struct{}

func (d *dying) moment() {
	if d.moments--; d.moments < 0 {
		panic(killed{})
	}
}

func (d *dying) Writing(inode uint64, size int64) {
	d.moment()
	d.buffer.Writing(inode, size)
	d.moment()
}

func (d *dying) Written(n int) {
	d.moment()
	d.buffer.Written(n)
	d.moment()
}

// A log with a limit is rotated in the midst of what was read at once. At whichever moment of that the
// executor is killed, also between the renaming of the log and the making of the new one, its
// successor completes the log: each line is in it once, and no file is larger than the limit.
func TestInHandOverRotations(t *testing.T) {
	for _, tty := range []bool{false, true} {
		end := map[bool]string{false: "\n", true: "\r\n"}[tty]
		var raw, want string
		for i := range 30 {
			raw += fmt.Sprint("line ", i, end)
			want += fmt.Sprint("line ", i, "\n")
		}
		raw, want = raw+"half"+strings.TrimSuffix(end, "\n"), want+"half"
		for moment, over := 0, false; !over; moment++ {
			for _, renamed := range []bool{false, true} {
				t.Run(fmt.Sprint("tty ", tty, " moment ", moment, " renamed ", renamed), func(t *testing.T) {
					state := t.TempDir()
					s := wire.Settings{ID: "c1", LogPath: filepath.Join(state, "0.log"), LogMaxLine: 100, LogLimit: crilog.Limit{Size: 300, Files: 100}}
					w, err := OpenLog(s, nil)
					if err != nil {
						t.Fatal(err)
					}
					h := buffersOf(t, state).take("c1", &output{stream: crilog.Stdout, tty: tty})
					copy(h.ask(len(raw)), raw)
					h.got(len(raw))
					text := h.unlogged()
					h.upto = len(text)
					if tty {
						text, _ = cooked(text, false)
					}
					func() {
						defer func() {
							if r := recover(); r != nil && r != (killed{}) {
								panic(r)
							}
						}()
						w.Write(crilog.Stdout, text, &dying{h, moment})
						over = true
					}()
					if renamed {
						if err := os.Rename(s.LogPath, s.LogPath+".20991231-000000"); err != nil {
							t.Fatal(err)
						}
					}
					if between := len(h.unlogged()) > 0 && h.size.Load() == 0; renamed && !between && !over {
						return // it rotates before it says that it writes, so this cannot be
					}
					buffersOf(t, state).Complete(s)
					files, err := filepath.Glob(s.LogPath + ".*")
					if err != nil {
						t.Fatal(err)
					}
					got := ""
					for _, name := range append(files, s.LogPath) {
						if info, err := os.Stat(name); err == nil && info.Size() > s.LogLimit.Size {
							t.Errorf("%s has %d bytes", name, info.Size())
						} else if err == nil {
							got += logged(t, name)
						}
					}
					if got != want {
						t.Errorf("the log has %q, want %q", got, want)
					}
				})
			}
		}
	}
}

// After a part of a terminal's output was logged, what remains is what was not.
func TestRawLen(t *testing.T) {
	var texts []string
	for last := []string{""}; len(last[0]) < 5; texts = append(texts, last...) {
		var longer []string
		for _, text := range last {
			longer = append(longer, text+"a", text+"\r", text+"\n")
		}
		last = longer
	}
	for _, text := range texts {
		for _, cr := range []bool{false, true} {
			all, cr1 := cooked([]byte(text), cr)
			for n := 1; n <= len(all); n++ {
				raw := rawLen([]byte(text), cr, n)
				rest, cr2 := cooked([]byte(text[raw:]), false)
				if string(rest) != string(all[n:]) || n < len(all) && cr1 != cr2 || n == len(all) && raw != len(text) {
					t.Errorf("%q after a \\r %v, %d of %q: rest %q", text, cr, n, all, text[raw:])
				}
			}
		}
	}
}
