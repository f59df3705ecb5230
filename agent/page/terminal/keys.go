package terminal

import "strings"

// cursorKeys have the last letters of the sequences of cursor keys. These begin with ESC [ or,
// in the mode of applications (DECCKM), with ESC O.
var cursorKeys = map[string]string{"ArrowUp": "A", "ArrowDown": "B", "ArrowRight": "C", "ArrowLeft": "D", "Home": "H", "End": "F"}

// otherKeys have the sequences of the other keys with names. The names are those of browsers
// (KeyboardEvent.key).
var otherKeys = map[string]string{
	"Enter": "\r", "Backspace": "\x7f", "Tab": "\t", "Escape": "\x1b", "Delete": "\x1b[3~", "Insert": "\x1b[2~", "PageUp": "\x1b[5~", "PageDown": "\x1b[6~",
}

// Key returns what a key with a name ("ArrowUp"), or one pressed with Ctrl ("^C"), sends to the
// program; "" for any other.
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

// Paste returns what pasted text sends to the program: without ESC, so that it has no escape
// sequences, with CR for line ends, and bracketed if the program asked for that (mode 2004).
func (t *Terminal) Paste(text string) string {
	text = strings.NewReplacer("\x1b", "", "\r\n", "\r", "\n", "\r").Replace(text)
	if t.bracketed {
		return "\x1b[200~" + text + "\x1b[201~"
	}
	return text
}
