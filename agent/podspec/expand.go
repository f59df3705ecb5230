package podspec

import (
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Expand replaces $(NAME) by the value of NAME, and $$ by $. Unknown names and any other $
// stay as they are.
func Expand(s string, value func(string) (string, bool)) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(s, "$")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		if after, ok := strings.CutPrefix(rest, "$"); ok {
			b.WriteByte('$')
			s = after
			continue
		}
		name, after, closed := strings.Cut(strings.TrimPrefix(rest, "("), ")")
		if !closed || !strings.HasPrefix(rest, "(") {
			b.WriteByte('$')
			s = rest
			continue
		}
		v, known := value(name)
		if !known {
			v = "$(" + name + ")"
		}
		b.WriteString(v)
		s = after
	}
}

func lookup(env []*cri.KeyValue) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, kv := range env {
			if kv.Key == name {
				return string(kv.Value), true
			}
		}
		return "", false
	}
}
