package terminal

import "strings"

// cursorKeys are those that end a sequence by this letter; which one begins it is a mode.
var cursorKeys = map[string]string{"ArrowUp": "A", "ArrowDown": "B", "ArrowRight": "C", "ArrowLeft": "D", "Home": "H", "End": "F"}

// otherKeys are the keys with names, as browsers call them.
var otherKeys = map[string]string{
	"Enter": "\r", "Backspace": "\x7f", "Tab": "\t", "Escape": "\x1b", "Delete": "\x1b[3~", "Insert": "\x1b[2~", "PageUp": "\x1b[5~", "PageDown": "\x1b[6~",
}

// Key is what a key sends to the program: one with a name ("ArrowUp"), or with Ctrl ("^C").
// Of any other it is "".
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
