package manifest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	k8stypes "k8s.io/apimachinery/pkg/types"
	k8sjson "k8s.io/apimachinery/pkg/util/json"
	k8syaml "sigs.k8s.io/yaml"
)

type reader struct {
	o        Options
	name     string
	objects  []Object
	seen     map[string]int // kind, namespace and name → line of the definition
	errs     Errors
	warnings Errors
}

func (r *reader) fail(errs ...Error) { r.errs = append(r.errs, inFile(r.name, errs)...) }

func (r *reader) warn(warnings Errors) { r.warnings = append(r.warnings, inFile(r.name, warnings)...) }

// inFile sets the file of errors, and sorts them by line.
func inFile(name string, errs Errors) Errors {
	slices.SortStableFunc(errs, func(a, b Error) int { return a.Line - b.Line })
	for i := range errs {
		errs[i].File = name
	}
	return errs
}

func (r *reader) document(doc document) {
	var root yaml.Node
	if err := yaml.Unmarshal(doc.text, &root); err != nil {
		r.fail(mistake(err, doc))
		return
	}
	if len(root.Content) == 0 {
		return
	}
	at := &tree{node: root.Content[0], base: doc.line - 1}
	data, err := k8syaml.YAMLToJSON(doc.text) // not strict: the checker reports duplicate keys
	if err != nil {
		r.fail(syntaxError(err, doc.line))
		return
	}
	kind, version := at.kind()
	if strings.HasSuffix(kind, "List") && version == "v1" || kind == "List" {
		r.list(at, data)
		return
	}
	r.object(at, data, doc.line)
}

// list decodes the items of a List, or of the list of a kind of v1, such as a PodList.
func (r *reader) list(at *tree, data []byte) {
	var list struct{ Items []json.RawMessage }
	items := child(at.node, "items")
	if items == nil {
		r.fail(Error{Line: at.line(at.node), Field: "items", Text: "is missing"})
		return
	}
	if err := json.Unmarshal(data, &list); err != nil || items.Kind != yaml.SequenceNode || len(items.Content) != len(list.Items) {
		r.fail(Error{Line: at.line(items), Field: "items", Text: "want a list of objects"})
		return
	}
	for i, node := range items.Content {
		item := &tree{node: resolve(node), base: at.base, prefix: fmt.Sprintf("items[%d].", i)}
		r.object(item, list.Items[i], item.line(node))
	}
}

// Split returns the objects of a file as JSON, without defaults. It returns each item of a List as
// an object.
func Split(name string, data []byte) ([]json.RawMessage, error) {
	var objects []json.RawMessage
	for _, doc := range split(data) {
		text, err := k8syaml.YAMLToJSON(doc.text)
		if err != nil {
			e := syntaxError(err, doc.line)
			e.File = name
			return nil, Errors{e}
		}
		var head struct {
			Kind  string
			Items []json.RawMessage
		}
		if err := json.Unmarshal(text, &head); err == nil && strings.HasSuffix(head.Kind, "List") {
			objects = append(objects, head.Items...)
			continue
		}
		objects = append(objects, text)
	}
	return objects, nil
}

func (r *reader) object(at *tree, data []byte, line int) {
	kind, err := at.kindOf()
	if err != nil {
		r.fail(*err)
		return
	}
	if kind == nil {
		if name, _ := at.kind(); leftOut[name] != "" {
			r.warn([]Error{{Line: at.lineOf("kind"), Field: at.prefix + "kind", Text: name + " is left out: " + leftOut[name]}})
		}
		return
	}
	c := &checker{tree: at, kind: kind.name, unknown: r.o.Unknown}
	c.walk(c.node, kind.typ, "", "")
	r.warn(c.warnings)
	if r.o.Accepted {
		r.warn(c.errs)
	} else if len(c.errs) > 0 {
		r.fail(c.errs...)
		return
	}
	o := kind.new()
	if err := k8sjson.Unmarshal(data, o); err != nil { // case-sensitive, like the checker
		// The checker names every mistake it knows; this catches the rest.
		r.fail(Error{Line: line, Text: strings.TrimPrefix(err.Error(), "json: ")})
		return
	}
	if kind.namespaced && o.GetNamespace() == "" {
		o.SetNamespace("default")
	}
	hash := contentHash(data, r.o.NodeName)
	v := &validator{tree: at, node: r.o.NodeName, accepted: r.o.Accepted}
	v.metadata(o, true)
	if !kind.namespaced && o.GetNamespace() != "" {
		v.report("metadata.namespace", "a %s is in no namespace", kind.name)
	}
	kind.complete(v, o, r.o)
	for _, path := range c.refused { // after the hash of a template, which includes them
		drop(reflect.ValueOf(o), steps(path))
	}
	v.values("", "", reflect.ValueOf(o))
	if len(v.errs) > 0 {
		r.fail(v.errs...)
		return
	}
	r.warn(v.warnings)
	if at, twice := r.seen[Key(o)]; twice {
		r.fail(Error{r.name, line, "metadata.name", fmt.Sprintf("%s is already defined at line %d", Key(o), at)})
		return
	}
	r.seen[Key(o)] = line
	o.SetUID(k8stypes.UID(hash))
	annotate(o, map[string]string{AnnotationHash: hash, AnnotationSource: r.o.Source, AnnotationFile: r.name})
	r.objects = append(r.objects, o)
}

// Key returns the kind, namespace and name of an object, for messages and as the key of stores:
// "pod default/web", "runtimeclass alt".
func Key(o Object) string {
	name := o.GetName()
	if ns := o.GetNamespace(); ns != "" {
		name = ns + "/" + name
	}
	return strings.ToLower(KindOf(o)) + " " + name
}

func annotate(o Object, values map[string]string) {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	maps.Copy(annotations, values)
	o.SetAnnotations(annotations)
}

// contentHash returns the identity of an object, 32 hex digits. As in the kubelet, an edited pod is
// another pod. The hash covers values and not the text, so that comments and layout do not count.
// It excludes the file's name, so that renaming a file restarts nothing, and defaults, so that an
// agent with other defaults does not replace every pod of the node.
func contentHash(data []byte, node string) string {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		v = string(data)
	}
	canonical, err := json.Marshal(v) // Marshal sorts keys
	if err != nil {
		canonical = data
	}
	sum := sha256.Sum256(append(append(canonical, 0), node...))
	return hex.EncodeToString(sum[:16])
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("manifest: %T has no JSON form: %v", v, err))
	}
	return data
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// syntaxError converts an error of the YAML parser to one with the line in the file. begin is the
// line at which the document begins.
func syntaxError(err error, begin int) Error {
	text := err.Error()
	if typed, ok := errors.AsType[*yaml.TypeError](err); ok && len(typed.Errors) > 0 {
		text = typed.Errors[0]
	}
	line := begin
	if m := yamlLine.FindStringSubmatchIndex(text); m != nil {
		if n, err := strconv.Atoi(text[m[2]:m[3]]); err == nil {
			line = begin - 1 + n
			text = text[:m[0]] + text[m[1]:]
		}
	}
	text = strings.TrimPrefix(strings.TrimPrefix(text, "error converting YAML to JSON: "), "yaml: ")
	text = strings.TrimSpace(strings.TrimPrefix(text, "unmarshal errors:"))
	return Error{Line: line, Text: text}
}

// mistake is syntaxError for people: with the line of the token that is wrong, where the parser has
// that of the block around it, and a word about tabs.
func mistake(err error, doc document) Error {
	e := syntaxError(err, doc.line)
	lines := bytes.SplitAfter(doc.text, []byte("\n"))
	if strings.HasPrefix(e.Text, "did not find expected key") || strings.HasPrefix(e.Text, "did not find expected '-'") {
		wrong := sort.Search(len(lines), func(n int) bool { // the fewest lines with the same error
			err := yaml.Unmarshal(bytes.Join(lines[:n], nil), new(yaml.Node))
			return err != nil && syntaxError(err, doc.line).Text == e.Text
		})
		e.Line = max(e.Line, doc.line-1+wrong)
		e.Text += ": is it indented as what it belongs to?"
	}
	for _, n := range []int{e.Line - doc.line, e.Line - doc.line + 1} { // the parser may have the line before
		if n < 0 || n >= len(lines) {
			continue
		}
		if rest := bytes.TrimLeft(lines[n], " "); len(rest) > 0 && rest[0] == '\t' && strings.Contains(e.Text, "cannot start any token") {
			return Error{Line: doc.line + n, Text: "a tab: YAML wants spaces"}
		}
	}
	return e
}

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
