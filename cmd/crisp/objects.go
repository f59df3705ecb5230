package main

import (
	"cmp"
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// A selection restricts which objects of a kind a command applies to.
type selection struct {
	namespace, selector string
	all                 bool // all namespaces
}

// flags adds the flags of commands that can apply to all namespaces.
func (s *selection) flags(fs *pflag.FlagSet) {
	s.oneFlags(fs)
	fs.BoolVarP(&s.all, "all-namespaces", "A", false, "of all namespaces")
}

// oneFlags adds the flags of commands that apply to one namespace.
func (s *selection) oneFlags(fs *pflag.FlagSet) {
	namespaceFlag(fs, &s.namespace)
	fs.StringVarP(&s.selector, "selector", "l", "", "only objects whose labels match the `selector`, such as app=web")
}

func namespaceFlag(fs *pflag.FlagSet, namespace *string) {
	fs.StringVarP(namespace, "namespace", "n", "default", "`namespace` of the pod")
}

// within returns the namespace, "" for all.
func (s selection) within() string {
	if s.all {
		return ""
	}
	return s.namespace
}

func (s selection) has(namespace string) bool { return s.all || s.namespace == namespace }

// An objectName is the meaning of an argument such as "pod/web": an object, or all of its kind.
type objectName struct {
	kind api.Kind
	name string // "" for all
}

func (t objectName) String() string { return t.kind.Singular + "/" + t.name }

// everything has the kinds that "all" stands for.
var everything = []string{"pod", "deployment", "statefulset", "daemonset", "job"}

// kindsOf parses "pods", "pods,deploy" and "all".
func kindsOf(word string) (kinds []api.Kind, ok bool) {
	words := strings.Split(word, ",")
	if word == "all" {
		words = everything
	}
	for _, w := range words {
		k, known := api.KindOf(w)
		if !known {
			return nil, false
		}
		kinds = append(kinds, k)
	}
	return kinds, true
}

// objectNames parses "TYPE/NAME...", "TYPE[,TYPE...] NAME..." and "TYPE[,TYPE...]"; a name alone is a
// pod if bare is allowed.
func objectNames(args []string, bare bool) (list []objectName, err error) {
	for i, arg := range args {
		word, name, slash := strings.Cut(arg, "/")
		kinds, known := kindsOf(word)
		switch {
		case slash && len(kinds) == 1 && name != "":
			list = append(list, objectName{kinds[0], name})
		case slash:
			return nil, usageError("%s: there is no such kind of object", arg)
		case i == 0 && known && !(bare && len(args) == 1):
			for _, k := range kinds {
				for _, name := range args[1:] {
					list = append(list, objectName{k, name[strings.Index(name, "/")+1:]})
				}
				if len(args) == 1 {
					list = append(list, objectName{k, ""})
				}
			}
			return list, nil
		case bare:
			list = append(list, objectName{podKind, arg})
		default:
			return nil, usageError("%s: there is no such kind of object", arg)
		}
	}
	return list, nil
}

var (
	podKind, _   = api.KindOf("pod")
	classKind, _ = api.KindOf("RuntimeClass")
)

// An object is one of the agent's to which a command applies.
type object struct {
	objectName
	namespace string
	text      json.RawMessage // as a manifest has it
}

func objectOf(k api.Kind, o metav1.Object) object {
	return object{objectName{k, o.GetName()}, o.GetNamespace(), nil}
}

func (t object) path() string { return pathOf(t.kind, t.namespace, t.name) }

// choose returns the objects that the arguments name or, with a selector or every, the matching
// objects of the named kinds, by default pods. what is the text of the usage error.
func (c *cli) choose(args []string, s selection, every bool, what string) ([]object, error) {
	wide := s.selector != "" || every
	named, err := objectNames(args, !wide)
	if err != nil {
		return nil, err
	}
	if len(named) == 0 && wide {
		named = []objectName{{podKind, ""}}
	}
	if len(named) == 0 {
		return nil, usageError("%s", what)
	}
	var list []object
	for _, t := range named {
		if t.name != "" {
			list = append(list, object{t, s.namespace, nil})
			continue
		}
		if !wide {
			return nil, usageError("%s", what)
		}
		items, err := c.objects(t.kind, s.within(), url.Values{"labelSelector": {s.selector}})
		if err != nil {
			return nil, err
		}
		for _, u := range items {
			list = append(list, objectOf(t.kind, &u))
		}
	}
	return list, nil
}

// selected returns the pods that arguments such as "web", "pod/web" and "deploy/web" name, or all
// pods without arguments, if they match the selector.
func (c *cli) selected(args []string, s selection) ([]criruntime.Found, error) {
	selector, err := labels.Parse(s.selector)
	if err != nil {
		return nil, usageError("-l %s: %v", s.selector, err)
	}
	all, err := c.anyPods()
	if err != nil {
		return nil, err
	}
	fits := func(f criruntime.Found) bool {
		return s.has(f.Pod.Namespace) && selector.Matches(labels.Set(f.Pod.Labels))
	}
	if len(args) == 0 {
		return slices.DeleteFunc(all, func(f criruntime.Found) bool { return !fits(f) }), nil
	}
	named, err := objectNames(args, true)
	if err != nil {
		return nil, err
	}
	var list []criruntime.Found
	for _, t := range named {
		n := len(list)
		for _, f := range all {
			if fits(f) && t.covers(f.Pod) {
				list = append(list, f)
			}
		}
		if len(list) == n {
			return nil, t.missing(s.namespace)
		}
	}
	return list, nil
}

// covers reports whether a pod has the name, or belongs to the workload that has it.
func (t objectName) covers(pod metav1.Object) bool {
	if t.kind.Name == "Pod" {
		return t.name == pod.GetName()
	}
	return pod.GetAnnotations()[manifest.AnnotationWorkload] == t.kind.Singular+" "+pod.GetNamespace()+"/"+t.name
}

func (t objectName) missing(namespace string) error {
	if t.kind.Name == "Pod" {
		return fault.NotFound.Errorf("there is no pod %s in namespace %s", t.name, namespace)
	}
	return fault.NotFound.Errorf("there is no pod of %s in namespace %s", t, namespace)
}

// best orders pods by preference: of a workload's pods one that is ready, or at least running; of
// pods with the same name, while one replaces another, the younger.
func best(a, b criruntime.Found) int {
	rank := func(pod *v1.Pod) int {
		switch {
		case pod.DeletionTimestamp != nil:
			return 3
		case ready(pod):
			return 0
		case pod.Status.Phase == v1.PodRunning:
			return 1
		}
		return 2
	}
	if a.Pod.Name == b.Pod.Name {
		return b.Pod.CreationTimestamp.Compare(a.Pod.CreationTimestamp.Time)
	}
	return cmp.Or(cmp.Compare(rank(a.Pod), rank(b.Pod)), strings.Compare(a.Pod.Name, b.Pod.Name))
}
