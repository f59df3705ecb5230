package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// A document is the text of manifests, and its origin.
type document struct {
	name string
	data []byte
}

// inputs reads the arguments of -f: files, directories, URLs, or standard input.
func (c *cli) inputs(names []string) ([]document, error) {
	var docs []document
	for _, name := range names {
		paths, read := []string{name}, os.ReadFile
		var err error
		switch {
		case name == "-":
			read = func(string) ([]byte, error) { return io.ReadAll(c.stdin) }
		case isURL(name):
			read = c.download
		default:
			paths, err = filesOf(name)
		}
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			data, err := read(path)
			if err != nil {
				return nil, err
			}
			docs = append(docs, document{path, data})
		}
	}
	return docs, nil
}

func isURL(name string) bool {
	return strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://")
}

func (c *cli) download(from string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(c.ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", from, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// filesOf returns the path, or the manifests in it if it is a directory.
func filesOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && !strings.HasPrefix(e.Name(), ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: there is no manifest in it", path)
	}
	return files, nil
}

func fileFlag(fs *pflag.FlagSet, files *[]string) {
	fs.StringArrayVarP(files, "filename", "f", nil, "`file`, directory or URL of manifests; - is standard input")
}

var validations = map[string]manifest.Unknown{"strict": manifest.Strict, "warn": manifest.Warn, "ignore": manifest.Ignore}

func validateFlag(fs *pflag.FlagSet, mode *string) {
	fs.StringVar(mode, "validate", "strict", "how to treat unknown fields: strict (errors), warn or ignore")
}

// read checks the documents and returns their objects in the order of their dependencies: objects
// that pods refer to come before pods. What only an earlier release accepted is an error, unless
// accepted, which may be nil, knows better.
func (c *cli) read(docs []document, namespace, mode string, accepted func([]object) bool) ([]object, error) {
	unknown, ok := validations[mode]
	if !ok {
		return nil, usageError("--validate %s: want strict, warn or ignore", mode)
	}
	var all []object
	var errs []string
	for _, doc := range docs {
		o := manifest.Options{Source: manifest.SourceAPI, Unknown: unknown}
		_, warnings, err := manifest.Read(doc.name, doc.data, o)
		for _, w := range warnings {
			fmt.Fprintln(c.stderr, "crisp: warning:", w)
		}
		if err != nil {
			o.Accepted = true
			if _, _, acceptedErr := manifest.Read(doc.name, doc.data, o); acceptedErr != nil || accepted == nil {
				errs = append(errs, err.Error())
				continue
			}
		}
		objects, splitErr := objectsOf(doc, namespace)
		if splitErr != nil {
			return nil, splitErr
		}
		if err != nil && (!sameFaults(err, objects, o) || !accepted(objects)) {
			errs = append(errs, err.Error())
			continue
		}
		all = append(all, objects...)
	}
	if len(errs) > 0 {
		return nil, &exitError{exitInvalid, strings.Join(errs, "\n")}
	}
	slices.SortStableFunc(all, func(a, b object) int { return rank(a.kind) - rank(b.kind) })
	return all, nil
}

// sameFaults reports whether objects have all the faults of their document: a key that is there
// twice, for instance, is only in the document.
func sameFaults(err error, objects []object, o manifest.Options) bool {
	all, _ := errors.AsType[manifest.Errors](err)
	o.Accepted = false
	var found manifest.Errors
	for _, g := range objects {
		_, _, err := manifest.Read("", g.text, o)
		errs, _ := errors.AsType[manifest.Errors](err)
		found = append(found, errs...)
	}
	return !slices.ContainsFunc(all, func(e manifest.Error) bool {
		return !slices.ContainsFunc(found, func(f manifest.Error) bool { return f.Field == e.Field && f.Text == e.Text })
	})
}

// objectsOf returns the objects of a document that the agent keeps.
func objectsOf(doc document, namespace string) ([]object, error) {
	texts, err := manifest.Split(doc.name, doc.data)
	if err != nil {
		return nil, err
	}
	var list []object
	for _, text := range texts {
		var head metav1.PartialObjectMetadata
		if err := json.Unmarshal(text, &head); err != nil {
			return nil, err
		}
		kind, known := api.KindOf(head.Kind)
		if !known || !kind.Writable {
			continue // a namespace
		}
		g := object{objectName{kind, head.Name}, head.Namespace, text}
		if kind.Namespaced && g.namespace == "" {
			g.namespace = namespace
		}
		list = append(list, g)
	}
	return list, nil
}

func rank(k api.Kind) int {
	switch k.Name {
	case "Pod", "Deployment", "StatefulSet", "DaemonSet", "Job":
		return 1
	}
	return 0
}

// pruneAnnotation marks objects that were applied with --prune. Its value is their origin: the
// absolute paths and URLs on the command line, or the set.
const pruneAnnotation = "crisp/applied-from"

func applyCommand(c *cli) *cobra.Command {
	var files []string
	var namespace, mode, output, dryRun, set string
	var wait, prune bool
	var timeout time.Duration
	cmd := &cobra.Command{Use: "apply -f FILE... [--wait] [--prune]", Short: "create or update the objects in manifests"}
	fs := cmd.Flags()
	fileFlag(fs, &files)
	namespaceFlag(fs, &namespace)
	validateFlag(fs, &mode)
	fs.StringVar(&dryRun, "dry-run", "", "only print what would be done: `server`, or client, which only validates")
	outputFlag(fs, &output, "json", "yaml", "name")
	fs.BoolVar(&wait, "wait", false, "wait until the pods are ready")
	fs.BoolVar(&prune, "prune", false, "delete objects applied from here with --prune before that are no longer there")
	fs.StringVar(&set, "applyset", "", "with --prune, the `name` of this set of manifests, wherever they come from")
	fs.DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	return runs(cmd, func(rest []string) error {
		if len(files) == 0 || len(rest) > 0 {
			return usageError("apply needs -f FILE")
		}
		if dryRun != "" && dryRun != "server" && dryRun != "client" { // another value would make the change that it should only try
			return usageError("--dry-run %s: want server or client", dryRun)
		}
		origin := ""
		if prune {
			var err error
			if origin, err = originOf(files, set); err != nil {
				return err
			}
		}
		docs, err := c.inputs(files)
		if err != nil {
			return err
		}
		var accepted func([]object) bool
		if dryRun != "client" {
			accepted = func(list []object) bool { return c.wouldTake(list, mode) }
		}
		objects, err := c.read(docs, namespace, mode, accepted)
		if err != nil {
			return err
		}
		if dryRun == "client" {
			for _, g := range objects {
				fmt.Fprintln(c.stdout, g, "is valid")
			}
			return nil
		}
		for i := range objects {
			if prune {
				if err := annotate(&objects[i], pruneAnnotation, origin); err != nil {
					return err
				}
			}
			if err := c.put(objects[i], mode, dryRun == "server", output); err != nil {
				return err
			}
		}
		if prune && dryRun == "" {
			if err := c.prune(objects, origin); err != nil {
				return err
			}
		}
		if !wait || dryRun != "" {
			return nil
		}
		return c.waitReady(objects, timeout)
	})
}

// originOf identifies the origin of manifests, so that two users of --prune never delete each
// other's objects: paths are absolute, and standard input needs a name.
func originOf(files []string, set string) (string, error) {
	if set != "" {
		return "applyset " + set, nil
	}
	var places []string
	for _, name := range files {
		switch {
		case name == "-":
			return "", usageError("--prune with -f - cannot know what was applied before: name the set by --applyset NAME")
		case isURL(name):
			places = append(places, name)
		default:
			path, err := filepath.Abs(name)
			if err != nil {
				return "", err
			}
			places = append(places, path)
		}
	}
	return strings.Join(places, ","), nil
}

func annotate(g *object, key, value string) error {
	var o unstructured.Unstructured
	if err := o.UnmarshalJSON(g.text); err != nil {
		return err
	}
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	o.SetAnnotations(annotations)
	var err error
	g.text, err = json.Marshal(o.Object)
	return err
}

// wouldTake reports whether the agent would take all of the objects: it judges of those that it has
// only what changes.
func (c *cli) wouldTake(list []object, mode string) bool {
	for _, g := range list {
		query := putQuery(mode)
		query.Set("dryRun", "All")
		if _, err := c.send(http.MethodPut, g.path(), query, g.text, nil); err != nil {
			return false
		}
	}
	return true
}

func putQuery(mode string) url.Values {
	return url.Values{"create": {"true"}, "fieldValidation": {map[string]string{"warn": "Warn", "ignore": "Ignore"}[mode]}}
}

func (c *cli) put(g object, mode string, dryRun bool, output string) error {
	query := putQuery(mode)
	if dryRun {
		query.Set("dryRun", "All")
	}
	var data json.RawMessage
	header, err := c.send(http.MethodPut, g.path(), query, g.text, &data)
	if err != nil {
		return fmt.Errorf("%s: %w", g, err)
	}
	var head metav1.PartialObjectMetadata
	if err := json.Unmarshal(data, &head); err != nil {
		return err
	}
	switch output {
	case "json":
		fmt.Fprintf(c.stdout, "%s\n", data)
	case "yaml":
		text, err := yaml.JSONToYAML(data)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.stdout, "---\n%s", text)
	case "name":
		fmt.Fprintln(c.stdout, g)
	default:
		line := fmt.Sprintf("%s %s", g, header.Get(api.OutcomeHeader))
		if dryRun {
			line += " (dry run)"
		}
		fmt.Fprintln(c.stdout, line)
	}
	return nil
}

// prune deletes objects that were applied from the same origin and are no longer in it.
func (c *cli) prune(kept []object, origin string) error {
	for _, k := range api.Kinds {
		if !k.Writable {
			continue
		}
		items, err := c.objects(k, "", nil)
		if err != nil {
			return err
		}
		for _, o := range items {
			is := func(g object) bool {
				return g.kind.Name == k.Name && g.name == o.GetName() && (!k.Namespaced || g.namespace == o.GetNamespace())
			}
			if o.GetAnnotations()[pruneAnnotation] != origin || len(o.GetAnnotations()["io.crisp.workload"]) > 0 || slices.ContainsFunc(kept, is) {
				continue
			}
			if err := c.delete(objectOf(k, &o), deletion{grace: -1}); err != nil && exitCode(err) != exitNotFound {
				return err
			}
			fmt.Fprintf(c.stdout, "%s/%s pruned\n", k.Singular, o.GetName())
		}
	}
	return nil
}

func validateCommand(c *cli) *cobra.Command {
	var files []string
	var mode string
	cmd := &cobra.Command{Use: "validate -f FILE", Short: "check manifests without running them"}
	fs := cmd.Flags()
	fileFlag(fs, &files)
	validateFlag(fs, &mode)
	return runs(cmd, func(rest []string) error {
		unknown, ok := validations[mode]
		if len(files) == 0 || len(rest) > 0 || !ok {
			return usageError("validate needs -f FILE")
		}
		docs, err := c.inputs(files)
		if err != nil {
			return err
		}
		bad := false
		for _, doc := range docs {
			objects, warnings, err := manifest.Read(doc.name, doc.data, manifest.Options{Unknown: unknown})
			if len(warnings) > 0 {
				fmt.Fprintln(c.stderr, warnings)
			}
			if errs, ok := errors.AsType[manifest.Errors](err); ok {
				fmt.Fprintln(c.stderr, errs)
				bad = true
				continue
			}
			for _, o := range objects {
				fmt.Fprintf(c.stdout, "%s: %s is valid\n", doc.name, manifest.Key(o))
			}
		}
		if bad {
			return &exitError{code: exitInvalid}
		}
		return nil
	})
}
