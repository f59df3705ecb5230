package terminal

import (
	"fmt"
	"strings"
)

// A style is how a cell looks. Colours are 1 to 16; 0 is the default.
type style struct {
	fore, back                          uint8
	bold, faint, italic, under, inverse bool
}

// background returns the style of blanked cells: only the background.
func (s style) background() style { return style{back: s.back} }

// set applies SGR with the parameters p. Of the 256 colours it supports only the first 16.
func (s *style) set(p []int) {
	for i := 0; i < len(p); i++ {
		switch v := p[i]; {
		case v == 0:
			*s = style{}
		case v == 1:
			s.bold = true
		case v == 2:
			s.faint = true
		case v == 3:
			s.italic = true
		case v == 4:
			s.under = true
		case v == 7:
			s.inverse = true
		case v == 22:
			s.bold, s.faint = false, false
		case v == 23:
			s.italic = false
		case v == 24:
			s.under = false
		case v == 27:
			s.inverse = false
		case v >= 30 && v <= 37:
			s.fore = uint8(v - 30 + 1)
		case v == 39:
			s.fore = 0
		case v >= 40 && v <= 47:
			s.back = uint8(v - 40 + 1)
		case v == 49:
			s.back = 0
		case v >= 90 && v <= 97:
			s.fore = uint8(v - 90 + 9)
		case v >= 100 && v <= 107:
			s.back = uint8(v - 100 + 9)
		case v == 38 || v == 48:
			i += s.extended(p[i:])
		}
	}
}

// extended sets one of the 256 colours ("38;5;N") if it is among the first 16, and ignores RGB
// colours ("38;2;R;G;B"). It returns the number of parameters that follow the first.
func (s *style) extended(p []int) int {
	if len(p) < 3 || p[1] != 5 {
		return 4
	}
	if p[2] < 16 && p[0] == 38 {
		s.fore = uint8(p[2] + 1)
	} else if p[2] < 16 {
		s.back = uint8(p[2] + 1)
	}
	return 2
}

// class returns the style as CSS classes: "bold f1 b4", with colours from 0.
func (s style) class() string {
	fore, back := s.fore, s.back
	if s.inverse {
		if fore == 0 {
			fore = 8
		}
		if back == 0 {
			back = 1
		}
		fore, back = back, fore
	}
	var names []string
	for _, a := range []struct {
		on   bool
		name string
	}{{s.bold, "bold"}, {s.faint, "faint"}, {s.italic, "italic"}, {s.under, "under"}} {
		if a.on {
			names = append(names, a.name)
		}
	}
	if fore > 0 {
		names = append(names, fmt.Sprintf("f%d", fore-1))
	}
	if back > 0 {
		names = append(names, fmt.Sprintf("b%d", back-1))
	}
	return strings.Join(names, " ")
}
