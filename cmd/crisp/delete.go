package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
)

// remove asks the agent to delete an object.
func (c *cli) remove(t target, namespace string, grace *int64, force bool) error {
	query := url.Values{}
	if grace != nil {
		query.Set("gracePeriodSeconds", strconv.FormatInt(*grace, 10))
	}
	if force {
		query.Set("force", "true")
	}
	resp, err := c.ask(http.MethodDelete, pathOf(t.kind, namespace, t.name), query, nil, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func deleteCommand(c *cli) *cobra.Command {
	var files list
	var namespace string
	var grace int64
	var force, manifests, ignore, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{Use: "delete pod/NAME|TYPE/NAME | -f FILE [--grace-period N] [--force] [--remove-manifest]", Short: "delete objects", ValidArgsFunction: c.podNames("pod/")}
	fs := cmd.Flags()
	fileFlag(fs, &files)
	namespaceFlag(fs, &namespace)
	fs.Int64Var(&grace, "grace-period", -1, "`seconds` that pods have to end; less than 0 is what each says itself")
	fs.BoolVar(&force, "force", false, "kill the pod at once; a second time, forget it, whatever is left of it")
	fs.BoolVar(&manifests, "remove-manifest", false, "remove the manifest file that a pod comes from")
	fs.BoolVar(&ignore, "ignore-not-found", false, "what is not there is no failure")
	fs.BoolVar(&wait, "wait", true, "wait until it is gone")
	fs.DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		what, err := targets(rest, true)
		if err != nil {
			return err
		}
		if len(files) > 0 {
			docs, err := c.inputs(files)
			if err != nil {
				return err
			}
			objects, err := c.read(docs, namespace, "ignore")
			if err != nil {
				return err
			}
			slices.Reverse(objects) // pods before what they refer to
			for _, g := range objects {
				if err := c.deleteOne(target{g.kind, g.name}, g.namespace, deletion{grace, force, manifests, true, wait, timeout}); err != nil {
					return err
				}
			}
		}
		if len(files) == 0 && (len(what) == 0 || what[0].name == "") {
			return usageError("delete takes what to delete: pod/NAME, or -f FILE")
		}
		for _, t := range what {
			if err := c.deleteOne(t, namespace, deletion{grace, force, manifests, ignore, wait, timeout}); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// A deletion is how to delete.
type deletion struct {
	grace                    int64
	force, manifests, ignore bool
	wait                     bool
	timeout                  time.Duration
}

func (c *cli) deleteOne(t target, namespace string, d deletion) error {
	var grace *int64
	if d.grace >= 0 {
		grace = &d.grace
	}
	if d.manifests {
		if done, err := c.removeManifest(t, namespace); done || err != nil {
			return err
		}
	}
	err := c.remove(t, namespace, grace, d.force)
	if errors.Is(err, fault.NotFound) && d.ignore {
		return nil
	}
	if err != nil {
		return err
	}
	if d.wait && t.kind.Name == "Pod" {
		if err := c.until(d.timeout, t.String()+" is still there", func() (bool, error) { return c.is(t, namespace, "delete") }); err != nil {
			return err
		}
	}
	fmt.Fprintln(c.stdout, t, "deleted")
	return nil
}

// removeManifest removes the file that a pod comes from, if it comes from one.
func (c *cli) removeManifest(t target, namespace string) (done bool, err error) {
	var pod v1.Pod
	if err := c.fetch(pathOf(t.kind, namespace, t.name), nil, &pod); err != nil {
		return false, err
	}
	if pod.Annotations[manifest.AnnotationSource] != manifest.SourceFile {
		return false, nil
	}
	path := pod.Annotations[manifest.AnnotationFile]
	if others, err := c.besides(path, manifest.Key(&pod)); err != nil {
		return false, err
	} else if len(others) > 0 {
		return false, fault.WrongState.Errorf("%s defines %s too: take the pod out of it with an editor, or remove it with rm", path, strings.Join(others, ", "))
	}
	if err := os.Remove(path); err != nil {
		return false, err
	}
	fmt.Fprintln(c.stdout, path, "removed")
	return true, nil
}

// besides returns what else than one object a manifest defines.
func (c *cli) besides(path, key string) ([]string, error) {
	var sources []desired.SourceState
	if err := c.fetch("/crisp/v1/sources", nil, &sources); err != nil {
		return nil, err
	}
	var others []string
	for _, s := range sources {
		for _, f := range s.Files {
			if s.Name != manifest.SourceFile || f.Path != path {
				continue
			}
			for _, o := range f.Objects {
				if o != key {
					others = append(others, o)
				}
			}
		}
	}
	return others, nil
}
