package manifest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A checker compares a document with the Go type of its kind and with the table of fields. It
// reports unknown keys, unsupported fields, and values of the wrong type, each with its line.
type checker struct {
	*tree
	kind     string
	unknown  Unknown
	errs     Errors
	warnings Errors
	refused  []string // paths of the fields that crisp does not support
}

func (c *checker) report(n *yaml.Node, path, format string, args ...any) {
	c.errs = append(c.errs, c.problem(n, path, format, args...))
}

func (c *checker) warn(n *yaml.Node, path, format string, args ...any) {
	c.warnings = append(c.warnings, c.problem(n, path, format, args...))
}

func (c *checker) problem(n *yaml.Node, path, format string, args ...any) Error {
	return Error{Line: c.line(n), Field: c.prefix + path, Text: fmt.Sprintf(format, args...)}
}

func (c *checker) stray(key *yaml.Node, path string) {
	switch c.unknown {
	case Strict:
		c.report(key, path, "unknown field")
	case Warn:
		c.warn(key, path, "unknown field")
	}
}

var (
	unmarshaler  = reflect.TypeFor[json.Unmarshaler]()
	quantityType = reflect.TypeFor[resource.Quantity]()
)

// walk checks n against typ. path is the position of n in the document ("spec.containers[0]"), rule
// the same position in the table of fields ("spec.containers[]").
func (c *checker) walk(n *yaml.Node, typ reflect.Type, path, rule string) {
	n = resolve(n)
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if n.ShortTag() == "!!null" {
		return
	}
	if typ == quantityType {
		if _, err := resource.ParseQuantity(n.Value); err != nil || n.Kind != yaml.ScalarNode {
			c.report(n, path, "%q is not a quantity such as 500m, 1.5 or 64Mi", n.Value)
		}
		return
	}
	if reflect.PointerTo(typ).Implements(unmarshaler) {
		return // the type has its own parser
	}
	switch typ.Kind() {
	case reflect.Struct:
		if c.form(n, yaml.MappingNode, path, "a mapping") {
			c.walkStruct(n, typ, path, rule)
		}
	case reflect.Slice:
		if typ.Elem().Kind() == reflect.Uint8 || !c.form(n, yaml.SequenceNode, path, "a list") {
			return
		}
		for i, item := range n.Content {
			c.walk(item, typ.Elem(), fmt.Sprintf("%s[%d]", path, i), rule+"[]")
		}
	case reflect.Map:
		if !c.form(n, yaml.MappingNode, path, "a mapping") {
			return
		}
		seen := map[string]bool{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			at := fmt.Sprintf("%s[%s]", path, key)
			if seen[key] {
				c.report(n.Content[i], at, "is set twice")
			}
			seen[key] = true
			c.walk(n.Content[i+1], typ.Elem(), at, rule+"[]")
		}
	default:
		c.scalar(n, typ, path)
	}
}

func (c *checker) walkStruct(n *yaml.Node, typ reflect.Type, path, rule string) {
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.ShortTag() == "!!merge" {
			if m := resolve(value); m.Kind == yaml.MappingNode {
				c.walkStruct(m, typ, path, rule)
			}
			continue
		}
		at, sub := join(path, key.Value), join(rule, key.Value)
		field, known := fieldByJSON(typ, key.Value)
		switch {
		case seen[key.Value]:
			c.report(key, at, "is set twice")
			continue
		case !known:
			c.stray(key, at)
			continue
		}
		seen[key.Value] = true
		switch rule := supportOf(c.kind, sub); {
		case rule.support != rejected:
			c.walk(value, field.Type, at, sub) // even an ignored value must have the right type
		case !empty(resolve(value), field.Type):
			c.report(key, at, "%s", rule.text)
			c.refused = append(c.refused, at)
		}
	}
}

func (c *checker) form(n *yaml.Node, want yaml.Kind, path, what string) bool {
	if n.Kind == want {
		return true
	}
	c.report(n, path, "want %s, got %s", what, describe(n))
	return false
}

func (c *checker) scalar(n *yaml.Node, typ reflect.Type, path string) {
	tag := n.ShortTag()
	if n.Kind != yaml.ScalarNode {
		tag = ""
	} else if tag == "!!str" && n.Style == 0 && yaml11Bool(n.Value) {
		tag = "!!bool"
	}
	switch typ.Kind() {
	case reflect.String:
		if tag != "!!str" && tag != "!!timestamp" && tag != "!!binary" {
			c.report(n, path, "want a string, got %s: quote it", describe(n))
		}
	case reflect.Bool:
		if tag != "!!bool" {
			c.report(n, path, "want true or false, got %s", describe(n))
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		if tag != "!!int" {
			c.report(n, path, "want a whole number, got %s", describe(n))
		} else if v, err := strconv.ParseInt(n.Value, 0, 64); err == nil && typ.OverflowInt(v) {
			c.report(n, path, "%s is out of range", n.Value)
		}
	}
}

// yaml11Bool reports whether v, unquoted, is a boolean in YAML 1.1, the version of Kubernetes'
// parser. In YAML 1.2 it is a string.
func yaml11Bool(v string) bool {
	switch v {
	case "y", "Y", "n", "N", "yes", "Yes", "YES", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF":
		return true
	}
	return false
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	if n.ShortTag() == "!!str" && n.Style == 0 && yaml11Bool(n.Value) {
		return "the boolean " + n.Value
	}
	return strings.TrimSpace(map[string]string{
		"!!str": "the string", "!!int": "the number", "!!float": "the number", "!!bool": "the boolean",
	}[n.ShortTag()] + " " + n.Value)
}

// isChoice reports whether an empty mapping has a meaning: behind a pointer it has, as in "nfs:
// {}". An empty selector is the exception: Jobs and claims treat it like none.
func isChoice(typ reflect.Type) bool {
	return typ.Kind() == reflect.Pointer && typ.Elem() != reflect.TypeFor[metav1.LabelSelector]()
}

// empty reports whether a value is the same as no key. Tools that generate manifests write "status:
// {}" and "creationTimestamp: null".
func empty(n *yaml.Node, typ reflect.Type) bool {
	switch n.Kind {
	case yaml.MappingNode:
		return len(n.Content) == 0 && !isChoice(typ)
	case yaml.SequenceNode:
		return len(n.Content) == 0
	}
	if n.ShortTag() == "!!null" {
		return true
	}
	switch typ.Kind() {
	case reflect.Pointer: // an explicit false or 0 has a meaning
		return false
	case reflect.String:
		return n.Value == ""
	case reflect.Bool:
		return n.Value == "false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return n.Value == "0"
	}
	return false
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// fieldByJSON returns the field that the decoder sets for key, which may be in an embedded struct.
// Unlike encoding/json it is case-sensitive, as Kubernetes is.
func fieldByJSON(typ reflect.Type, key string) (reflect.StructField, bool) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == key && name != "" && name != "-" {
			return f, true
		}
		if f.Anonymous && (name == "" || strings.Contains(options, "inline")) {
			if in, ok := fieldByJSON(f.Type, key); ok {
				in.Index = append(slices.Clone(f.Index), in.Index...)
				return in, true
			}
		}
	}
	return reflect.StructField{}, false
}

func drop(x reflect.Value, path []string) {
	for _, step := range path {
		x = reflect.Indirect(x)
		switch x.Kind() {
		case reflect.Struct:
			f, ok := fieldByJSON(x.Type(), step)
			if !ok {
				return
			}
			x = x.FieldByIndex(f.Index)
		case reflect.Slice:
			i, err := strconv.Atoi(step)
			if err != nil || i >= x.Len() {
				return
			}
			x = x.Index(i)
		default:
			return
		}
	}
	x.SetZero()
}

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
