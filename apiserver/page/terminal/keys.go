package terminal

import "strings"

// cursorKeys has the last letters of the cursor keys' sequences, which begin with ESC [ or, in
// application mode (DECCKM), with ESC O.
var cursorKeys = map[string]string{"ArrowUp": "A", "ArrowDown": "B", "ArrowRight": "C", "ArrowLeft": "D", "Home": "H", "End": "F"}

// otherKeys has the sequences of the other named keys. The names are those of browsers
// (KeyboardEvent.key).
var otherKeys = map[string]string{
	"Enter": "\r", "Backspace": "\x7f", "Tab": "\t", "Escape": "\x1b", "Delete": "\x1b[3~", "Insert": "\x1b[2~", "PageUp": "\x1b[5~", "PageDown": "\x1b[6~",
}

// Key returns the sequence of a named key ("ArrowUp") or of one pressed with Ctrl ("^C"), and ""
// for any other.
func (t *Terminal) Key(name string) string {
	if letter, ok := cursorKeys[name]; ok {
		if t.appKeys {
			return "\x1bO" + letter
		}
		return "\x1b[" + letter
	}
	if letter, ok := strings.CutPrefix(name, "^"); ok && len(letter) == 1 {
		if c := strings.ToUpper(letter)[0]; c >= '@' && c <= '_' {
			return string(rune(c & 0x1f))
		}
	}
	return otherKeys[name]
}

// Paste returns the input of pasted text: without ESC, and so without escape sequences, with CR as
// line ends, and bracketed if the program has enabled that (mode 2004).
func (t *Terminal) Paste(text string) string {
	text = strings.NewReplacer("\x1b", "", "\r\n", "\r", "\n", "\r").Replace(text)
	if t.bracketed {
		return "\x1b[200~" + text + "\x1b[201~"
	}
	return text
}
