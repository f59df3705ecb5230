package main

import (
	"net/url"
	"strings"

	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/spf13/pflag"
)

// A scope restricts which objects of a kind a command applies to.
type scope struct {
	namespace, selector string
	all                 bool // all namespaces
}

// flags adds the flags of commands that can apply to all namespaces.
func (s *scope) flags(fs *pflag.FlagSet) {
	s.oneFlags(fs)
	fs.BoolVarP(&s.all, "all-namespaces", "A", false, "of all namespaces")
}

// oneFlags adds the flags of commands that apply to one namespace.
func (s *scope) oneFlags(fs *pflag.FlagSet) {
	namespaceFlag(fs, &s.namespace)
	fs.StringVarP(&s.selector, "selector", "l", "", "only objects whose labels match the `selector`, such as app=web")
}

func namespaceFlag(fs *pflag.FlagSet, namespace *string) {
	fs.StringVarP(namespace, "namespace", "n", "default", "`namespace` of the pod")
}

// within returns the namespace, "" for all.
func (s scope) within() string {
	if s.all {
		return ""
	}
	return s.namespace
}

func (s scope) has(namespace string) bool { return s.all || s.namespace == namespace }

// A target is the meaning of an argument such as "pod/web": an object, or all of its kind.
type target struct {
	kind api.Kind
	name string // "" for all
}

func (t target) String() string { return t.kind.Singular + "/" + t.name }

// everything has the kinds that "all" stands for.
var everything = []string{"pod", "deployment", "daemonset", "job"}

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

// targets parses "TYPE/NAME...", "TYPE[,TYPE...] NAME..." and "TYPE[,TYPE...]"; a name alone is a
// pod if bare is allowed.
func targets(args []string, bare bool) (list []target, err error) {
	for i, arg := range args {
		word, name, slash := strings.Cut(arg, "/")
		kinds, known := kindsOf(word)
		switch {
		case slash && len(kinds) == 1 && name != "":
			list = append(list, target{kinds[0], name})
		case slash:
			return nil, usageError("%s: there is no such kind of object", arg)
		case i == 0 && known && !(bare && len(args) == 1):
			for _, k := range kinds {
				for _, name := range args[1:] {
					list = append(list, target{k, name[strings.Index(name, "/")+1:]})
				}
				if len(args) == 1 {
					list = append(list, target{k, ""})
				}
			}
			return list, nil
		case bare:
			list = append(list, target{podKind, arg})
		default:
			return nil, usageError("%s: there is no such kind of object", arg)
		}
	}
	return list, nil
}

var podKind, _ = api.KindOf("pod")

// A chosen object is one of the agent's to which a command applies.
type chosen struct {
	target
	namespace string
}

func (t chosen) path() string { return pathOf(t.kind, t.namespace, t.name) }

// choose returns the objects that the arguments name or, with a selector or every, the matching
// objects of the named kinds, by default pods. what is the text of the usage error.
func (c *cli) choose(args []string, s scope, every bool, what string) ([]chosen, error) {
	wide := s.selector != "" || every
	named, err := targets(args, !wide)
	if err != nil {
		return nil, err
	}
	if len(named) == 0 && wide {
		named = []target{{podKind, ""}}
	}
	if len(named) == 0 {
		return nil, usageError("%s", what)
	}
	var list []chosen
	for _, t := range named {
		if t.name != "" {
			list = append(list, chosen{t, s.namespace})
			continue
		}
		if !wide {
			return nil, usageError("%s", what)
		}
		items, _, err := c.objects(t.kind, s.within(), url.Values{"labelSelector": {s.selector}})
		if err != nil {
			return nil, err
		}
		for _, u := range items {
			list = append(list, chosen{target{t.kind, u.GetName()}, u.GetNamespace()})
		}
	}
	return list, nil
}
