package manifest

import (
	"bytes"
)

// A document is one YAML document of a file.
type document struct {
	line int // line number in the file at which text begins, from 1
	text []byte
}

// split cuts data at the YAML document markers ("---"). It omits documents that have only blank
// lines and comments.
func split(data []byte) []document {
	var docs []document
	cur := document{line: 1}
	flush := func() {
		if !blank(cur.text) {
			docs = append(docs, cur)
		}
	}
	n := 0
	for line := range bytes.Lines(data) {
		n++
		rest, marker := bytes.CutPrefix(line, []byte("---"))
		if !marker || len(bytes.TrimLeft(rest[:min(1, len(rest))], " \t\r\n")) > 0 {
			cur.text = append(cur.text, line...)
			continue
		}
		flush()
		cur = document{line: n + 1}
		if rest = bytes.TrimSpace(rest); len(rest) > 0 && rest[0] != '#' {
			// "--- {kind: Pod}": the document begins on the marker's line.
			cur = document{line: n, text: append(rest, '\n')}
		}
	}
	flush()
	return docs
}

func blank(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("...")) {
			return false
		}
	}
	return true
}
