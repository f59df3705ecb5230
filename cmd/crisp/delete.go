package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
)

func deleteCommand(c *cli) *cobra.Command {
	var files []string
	var s selection
	d := deletion{}
	var every bool
	cmd := &cobra.Command{Use: "delete POD|TYPE/NAME... | TYPE -l SELECTOR|--all | -f FILE [--grace-period N] [--force] [--remove-manifest]", Short: "delete objects; by docker's name, rm", ValidArgsFunction: c.completeNamed}
	fs := cmd.Flags()
	fileFlag(fs, &files)
	s.flags(fs)
	fs.BoolVar(&every, "all", false, "all objects of the named kinds")
	graceFlag(fs, &d.grace)
	fs.BoolVar(&d.force, "force", false, "kill the pod at once; the second time, forget it whatever is left of it")
	fs.BoolVar(&d.manifests, "remove-manifest", false, "remove the manifest file that a pod comes from")
	fs.BoolVar(&d.ignore, "ignore-not-found", false, "succeed if an object does not exist")
	fs.BoolVar(&d.wait, "wait", true, "wait until it is gone")
	fs.DurationVar(&d.timeout, "timeout", 2*time.Minute, "how long to wait, for all of them together")
	return runs(cmd, func(rest []string) error {
		what, err := c.toDelete(files, rest, s, every)
		if err != nil {
			return err
		}
		d.ignore = d.ignore || len(files) > 0 || every || s.selector != ""
		return c.deleteAll(what, d)
	})
}

// toDelete returns the objects in manifests and those that the arguments name.
func (c *cli) toDelete(files []string, args []string, s selection, every bool) (what []object, err error) {
	if len(files) > 0 {
		docs, err := c.inputs(files)
		if errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(files[0], "./") { // docker's rm -f
			return nil, fmt.Errorf("%w: -f is a manifest; --force kills a pod at once", err)
		}
		if err != nil {
			return nil, err
		}
		if what, err = c.read(docs, s.namespace, "ignore", func([]object) bool { return true }); err != nil {
			return nil, err
		}
		slices.Reverse(what) // pods before the objects they refer to
		if len(args) == 0 {
			return what, nil
		}
	}
	named, err := c.choose(args, s, every, "delete takes what to delete: pod/NAME, or -f FILE")
	return append(what, named...), err
}

// A deletion has the options of delete.
type deletion struct {
	grace                    int64 // seconds; negative means the object's own
	force, manifests, ignore bool
	wait                     bool
	timeout                  time.Duration
}

// deleteAll deletes objects, or the manifests that they come from, up to the first that cannot be
// deleted. Then it waits for the pods, which end side by side, and says what is gone.
func (c *cli) deleteAll(what []object, d deletion) error {
	var begun []object
	var failed error
	for _, t := range what {
		if d.manifests {
			done, err := c.removeManifest(t)
			if failed = err; failed != nil {
				break
			}
			if done {
				continue
			}
		}
		err := c.delete(t, d)
		if errors.Is(err, fault.NotFound) && d.ignore {
			continue
		}
		if failed = err; failed != nil {
			break
		}
		begun = append(begun, t)
	}
	begin := time.Now()
	for _, t := range begun {
		if d.wait && t.kind.Name == "Pod" {
			if err := c.gone(t, left(d.timeout, begin)); err != nil {
				failed = errors.Join(failed, err)
				continue // others may be gone
			}
		}
		if _, err := fmt.Fprintln(c.stdout, t, "deleted"); err != nil {
			return errors.Join(failed, err)
		}
	}
	return failed
}

// gone waits until an object that is being deleted is gone.
func (c *cli) gone(t object, timeout time.Duration) error {
	return c.until(timeout, t.String()+" is still there", func() (bool, error) { return c.is(t, "delete") })
}

// delete has the agent delete an object. A pod then ends.
func (c *cli) delete(t object, d deletion) error {
	query := graceQuery(d.grace)
	if d.force {
		query.Set("force", "true")
	}
	_, err := c.send(http.MethodDelete, t.path(), query, nil, nil)
	return err
}

// removeManifest removes the manifest file of a pod if the pod is from a file.
func (c *cli) removeManifest(t object) (done bool, err error) {
	var pod v1.Pod
	if err := c.fetch(t.path(), nil, &pod); err != nil {
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

// besides returns the other objects that the manifest of key defines.
func (c *cli) besides(path, key string) ([]string, error) {
	var sources []source.SourceState
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
