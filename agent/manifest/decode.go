package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"
	k8stypes "k8s.io/apimachinery/pkg/types"
	k8syaml "sigs.k8s.io/yaml"
)

// decode makes a complete, valid pod of one document, or says what is wrong.
func decode(doc document, o Options) (*v1.Pod, Errors) {
	var root yaml.Node
	if err := yaml.Unmarshal(doc.text, &root); err != nil {
		return nil, Errors{syntaxError(err, doc.line)}
	}
	if len(root.Content) == 0 {
		return nil, nil
	}
	at := &tree{node: root.Content[0], base: doc.line - 1}
	if errs := checkKind(at); len(errs) > 0 {
		return nil, errs
	}
	if errs := checkFields(at); len(errs) > 0 {
		return nil, errs
	}
	data, err := k8syaml.YAMLToJSONStrict(doc.text)
	if err != nil {
		return nil, Errors{syntaxError(err, doc.line)}
	}
	pod := &v1.Pod{}
	if err := json.Unmarshal(data, pod); err != nil {
		// checkFields has found what can be named; this is the net below it.
		return nil, Errors{{Line: doc.line, Text: strings.TrimPrefix(err.Error(), "json: ")}}
	}
	hash := contentHash(data, o.NodeName)
	setDefaults(pod, o)
	if errs := validate(pod, o, at); len(errs) > 0 {
		slices.SortStableFunc(errs, func(a, b Error) int { return a.Line - b.Line })
		return nil, errs
	}
	pod.UID = k8stypes.UID(hash)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[AnnotationHash] = hash
	pod.Annotations[AnnotationSource] = "file"
	return pod, nil
}

// contentHash is the identity of a pod from a file, as the kubelet has it: any
// edit makes another pod. It covers the values, not the text, so that comments
// and layout are free; and not the file's name, so that a file can be renamed
// without harm to what runs. Defaults are not in it either: an agent with other
// defaults must not replace every pod of the node.
func contentHash(data []byte, node string) string {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		v = string(data)
	}
	canonical, err := json.Marshal(v) // sorts keys
	if err != nil {
		canonical = data
	}
	sum := sha256.Sum256(append(append(canonical, 0), node...))
	return hex.EncodeToString(sum[:16])
}

func checkKind(at *tree) Errors {
	if at.node.Kind != yaml.MappingNode {
		return Errors{{Line: at.line(at.node), Text: "not a Kubernetes object: apiVersion and kind are missing"}}
	}
	get := func(key string) (string, int) {
		if n := child(at.node, key); n != nil {
			return n.Value, at.line(n)
		}
		return "", at.line(at.node)
	}
	version, line := get("apiVersion")
	kind, kindLine := get("kind")
	switch {
	case kind == "":
		return Errors{{Line: kindLine, Field: "kind", Text: "is missing"}}
	case kind != "Pod":
		return Errors{{Line: kindLine, Field: "kind", Text: kind + " is not supported yet: only Pod is"}}
	case version != "v1":
		return Errors{{Line: line, Field: "apiVersion", Text: strconv.Quote(version) + ": want v1"}}
	}
	return nil
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// syntaxError takes the line out of the text of a YAML parser's error and makes
// it one of the file's.
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
