package manifest

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A tree is the node tree of one document, with the line of each field.
type tree struct {
	node   *yaml.Node
	base   int    // number of lines in the file before the document
	prefix string // prefix of the paths in errors: "items[0]." in a List
}

func (t *tree) line(n *yaml.Node) int { return t.base + n.Line }

// lineOf returns the line of the field at path ("spec.containers[1].name") or, if the document does
// not have the field, of its nearest parent.
func (t *tree) lineOf(path string) int {
	n := t.node
	line := t.line(n)
	for _, step := range steps(path) {
		n = resolve(n)
		var next *yaml.Node
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == step {
					next, line = n.Content[i+1], t.line(n.Content[i])
				}
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(step); err == nil && i < len(n.Content) {
				next = n.Content[i]
				line = t.line(next)
			}
		}
		if next == nil {
			return line
		}
		n = next
	}
	return line
}

// steps splits a path in the form of apimachinery's field.Path: "a.b[2]" or "a.b[key.x]".
func steps(path string) []string {
	var out []string
	for path != "" {
		i := strings.IndexAny(path, ".[")
		switch {
		case i < 0:
			return append(out, path)
		case i > 0:
			out = append(out, path[:i])
		}
		if path[i] == '.' {
			path = path[i+1:]
			continue
		}
		key, rest, _ := strings.Cut(path[i+1:], "]")
		out = append(out, key)
		path = rest
	}
	return out
}

// child returns the value of key in a mapping, or nil.
func child(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return resolve(n.Content[i+1])
		}
	}
	return nil
}

func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}
