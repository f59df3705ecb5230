package terminal

import (
	"encoding/json"
	"strings"
	"testing"
)

// screen returns the screen, a line for each row, without styles and trailing blank rows.
func screen(t *Terminal) string {
	var rows []string
	for _, l := range t.lines {
		text := ""
		for _, r := range l.runs(-1) {
			text += r[0]
		}
		rows = append(rows, strings.TrimRight(text, " "))
	}
	return strings.TrimRight(strings.Join(rows, "\n"), "\n")
}

func TestScreen(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"lines":                 {"a\r\nb\r\n", "a\nb"},
		"a line that wraps":     {strings.Repeat("x", MinColumns) + "y", strings.Repeat("x", MinColumns) + "\ny"},
		"backspace":             {"ab\b\x1b[Kc", "ac"},
		"backspace at the edge": {strings.Repeat("x", MinColumns) + "\b\b_", strings.Repeat("x", MinColumns-3) + "_xx"},
		"tab":                   {"a\tb", "a       b"},
		"scrolled":              {"1\r\n2\r\n3\r\n4\r\n5\r\n6", "2\n3\n4\n5\n6"},
		"cursor":                {"\x1b[2;3Hx\x1b[Ay\x1b[1B\x1b[3Dz", "   y\n zx"},
		"erase below":           {"a\r\nb\r\nc\x1b[2;1H\x1b[J", "a"},
		"erase above":           {"a\r\nb\r\nc\x1b[2;1H\x1b[1J", "\n\nc"},
		"erase all":             {"a\r\nb\x1b[2Jc", "\n c"},
		"delete characters":     {"abcd\x1b[3D\x1b[2P", "ad"},
		"insert characters":     {"abcd\x1b[3D\x1b[2@", "a  bcd"},
		"insert lines":          {"a\r\nb\x1b[1;1H\x1b[L", "\na\nb"},
		"delete lines":          {"a\r\nb\r\nc\x1b[1;1H\x1b[2M", "c"},
		"region":                {"a\r\nb\r\nc\r\nd\x1b[2;3r\x1b[3;1H\nx", "a\nc\nx\nd"},
		"reverse feed":          {"a\x1b[H\x1bMb", "b\na"},
		"alternate":             {"a\x1b[?1049hbbb\x1b[?1049lc", "ac"},
		"title":                 {"a\x1b]0;evil\x07b\x1b]52;c;ZXZpbA==\x1b\\c", "abc"},
		"device control":        {"a\x1bP+q544e\x1b\\b", "ab"},
		"string cut short":      {"a\x1bPq\x1b[1;3Hb\x1b]0;evil\x1bc\x1b(Bd", "d"},
		"cancelled":             {"a\x1b]0;evil\x18b\x1b[3\x1ac\x1b\x18d", "abcd"},
		"reports":               {"a\x1b[6n\x1b[c\x1b[>c\x1b[5nb", "ab"},
		"charset":               {"\x1b(0a\x1b(Bb", "ab"},
		"too many parameters":   {"a\x1b[" + strings.Repeat("1;", 100) + "Hb", "ab"},
		"intermediate":          {"a\x1b[1 qb\x1b[!pc", "abc"},
		"huge number":           {"a\x1b[99999999999999999999Bb", "a\n\n\n\n b"},
		"invisible":             {"a\u202eb\u200bc\u0085d\u2066e", "abcde"},
		"marks":                 {"e\u0301x", "e\u0301x"},
		"not UTF-8":             {"a\xffb", "a\ufffdb"},
	} {
		term := New(MinColumns, MinRows)
		for i := range len(c.in) { // byte by byte, which splits characters and sequences
			term.Write([]byte{c.in[i]})
		}
		if got := screen(term); got != c.want {
			t.Errorf("%s: shows\n%q, want\n%q", name, got, c.want)
		}
	}
}

func TestStyles(t *testing.T) {
	term := New(40, 5)
	term.Write([]byte("a\x1b[1;31mb\x1b[0;7mc\x1b[0;38;5;9md\x1b[38;5;200me\x1b[48;2;1;2;3mf\x1b[93;44mg\x1b[mh"))
	f := term.Frame()
	got, err := json.Marshal(f.Lines[0])
	if err != nil {
		t.Fatal(err)
	}
	want := `[["a",""],["b","bold f1"],["c","f0 b7"],["def","f9"],["g","f11 b4"],["h",""],[" ","cursor"]]`
	if string(got) != want {
		t.Errorf("runs\n%s, want\n%s", got, want)
	}
}

// A Frame has only changes; together the frames yield the screen.
func TestFrames(t *testing.T) {
	term := New(MinColumns, MinRows)
	term.Write([]byte("one\r\ntwo"))
	if f := term.Frame(); len(f.Lines) != MinRows {
		t.Errorf("the first frame has %d lines, want all", len(f.Lines))
	}
	if term.Changed() {
		t.Error("a frame was made, and the terminal says that there is more")
	}
	term.Write([]byte("!"))
	if f := term.Frame(); len(f.Lines) != 1 || f.Lines[1][0][0] != "two!" {
		t.Errorf("after a character: %v", f.Lines)
	}
	term.Write([]byte("\r\n3\r\n4\r\n5\r\n6\r\n7"))
	if f := term.Frame(); len(f.Past) != 2 || f.Past[0][0][0] != "one" || f.Past[1][0][0] != "two!" {
		t.Errorf("scrolled away: %v", f.Past)
	}
	term.Write([]byte("\x1b[?25l"))
	if f := term.Frame(); strings.Contains(f.Lines[4][len(f.Lines[4])-1][1], "cursor") {
		t.Errorf("a hidden cursor is shown: %v", f.Lines)
	}
}

func TestPastIsBounded(t *testing.T) {
	term := New(80, 24)
	term.Write([]byte(strings.Repeat("y\r\n", 100_000)))
	if f := term.Frame(); len(f.Past) > maxPast {
		t.Errorf("%d lines are kept", len(f.Past))
	}
	term.Write([]byte("\x1b[?1049h" + strings.Repeat("y\r\n", 1000)))
	if f := term.Frame(); len(f.Past) != 0 || !f.Other {
		t.Errorf("the alternate screen has a past of %d lines, other %v", len(f.Past), f.Other)
	}
}

func TestResize(t *testing.T) {
	term := New(40, 10)
	term.Write([]byte("1\r\n2\r\n3\r\n4\r\n5\r\n6\r\n7\r\n8"))
	term.Resize(1, 1) // the smallest size
	if got, want := screen(term), "4\n5\n6\n7\n8"; got != want {
		t.Errorf("smaller: %q, want %q", got, want)
	}
	term.Write([]byte("x"))
	term.Resize(1_000_000, 1_000_000)
	if c, r := term.Size(); c != MaxColumns || r != MaxRows {
		t.Errorf("the size is %d×%d, want %d×%d", c, r, MaxColumns, MaxRows)
	}
	if got, want := screen(term), "4\n5\n6\n7\n8x"; got != want {
		t.Errorf("larger: %q, want %q", got, want)
	}
}

func TestKeys(t *testing.T) {
	term := New(80, 24)
	for name, want := range map[string]string{"Enter": "\r", "^C": "\x03", "^[": "\x1b", "ArrowUp": "\x1b[A", "F1": "", "^": "", "^é": "", "": ""} {
		if got := term.Key(name); got != want {
			t.Errorf("%s sends %q, want %q", name, got, want)
		}
	}
	if got := term.Paste("a\nb\x1b[201~"); got != "a\rb[201~" {
		t.Errorf("a paste sends %q", got)
	}
	term.Write([]byte("\x1b[?1h\x1b[?2004h"))
	if got := term.Key("ArrowUp") + term.Paste("x\x1b[201~y"); got != "\x1bOA\x1b[200~x[201~y\x1b[201~" {
		t.Errorf("in application mode %q is sent", got)
	}
}

// Whatever a program writes, the screen stays within its bounds and can be shown.
func FuzzTerminal(f *testing.F) {
	for _, s := range []string{
		"a\r\nb\x1b[2J", "\x1b[1;3r\x1b[5S\x1b[5T", "\x1b[?1049h\x1b[20L\x1b[20M\x1b[?1049l", "\x1b7\x1b[99;99H\x1b8\x1bM\x1bD\x1bE\x1bc",
		"\x1b[3;1r\x1b[0;0r\x1b[;r", "\x1b]0;x\x1b\\\x1bPq\x07", "\x1b[38;5mx\x1b[38;2;1mx\x1b[48m", "e\u0301\u0301\u0301", "\x1b[99P\x1b[99@\x1b[99X",
	} {
		f.Add([]byte(s), uint8(30), uint8(7))
	}
	f.Fuzz(func(t *testing.T, in []byte, columns, rows uint8) {
		term := New(int(columns), int(rows))
		half := len(in) / 2
		term.Write(in[:half])
		term.Frame()
		term.Resize(int(rows), int(columns))
		term.Write(in[half:])
		frame := term.Frame()
		if len(term.lines) != frame.Rows || len(frame.Past) > maxPast || term.y < 0 || term.y >= term.rows || term.x < 0 || term.x > term.columns {
			t.Fatalf("%d lines of %d, %d past, cursor at %d,%d of %d", len(term.lines), frame.Rows, len(frame.Past), term.x, term.y, term.columns)
		}
		for y, l := range term.lines {
			if len(l.cells) != term.columns {
				t.Fatalf("row %d has %d cells, want %d", y, len(l.cells), term.columns)
			}
		}
		text, err := json.Marshal(frame)
		if err != nil || strings.ContainsAny(string(text), "\x1b\u009b\u202e") {
			t.Fatalf("frame %s, %v", text, err)
		}
	})
}
