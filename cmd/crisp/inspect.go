package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"strings"
	"text/template"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// inspectOptions has the flags of inspect.
type inspectOptions struct{ namespace, kind, format string }

// inspectCommand prints everything about a pod, a container or an image, as JSON.
func inspectCommand(c *cli) *cobra.Command {
	var o inspectOptions
	cmd := &cobra.Command{Use: "inspect POD|CONTAINER-ID|IMAGE... [--type pod|container|image] [-f TEMPLATE]", Short: "show everything known about pods, containers or images", ValidArgsFunction: c.completePods}
	fs := cmd.Flags()
	namespaceFlag(fs, &o.namespace)
	fs.StringVar(&o.kind, "type", "", "`type` of the objects: pod, container or image")
	fs.StringVarP(&o.format, "format", "f", "", "format each with this Go `template`")
	return runs(cmd, func(rest []string) error {
		if len(rest) == 0 || o.kind != "" && o.kind != "pod" && o.kind != "container" && o.kind != "image" {
			return usageError("inspect takes names of pods or images, or IDs of containers; --type is pod, container or image")
		}
		return c.inspect(rest, o)
	})
}

// inspect prints a JSON list of the named things, as docker does.
func (c *cli) inspect(names []string, o inspectOptions) error {
	var shape *template.Template
	if o.format != "" {
		var err error
		if shape, err = template.New("inspect").Parse(o.format + "\n"); err != nil {
			return usageError("-f: %v", err)
		}
	}
	all := []any{}
	for _, name := range names {
		v, err := c.look(name, o)
		if err != nil {
			return err
		}
		if shape == nil {
			all = append(all, v)
		} else if err := shape.Execute(c.stdout, v); err != nil {
			return usageError("-f: %v", err)
		}
	}
	if shape != nil {
		return nil
	}
	return c.printValue(all, "json")
}

// look finds a pod, a container or an image by name or ID, in this order.
func (c *cli) look(name string, o inspectOptions) (any, error) {
	for _, kind := range []struct {
		name string
		look func(string, inspectOptions) (any, error)
	}{{"pod", c.lookPod}, {"container", c.lookContainer}, {"image", c.lookImage}} {
		if o.kind != "" && o.kind != kind.name {
			continue
		}
		v, err := kind.look(name, o)
		if errors.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return plainValue(v)
	}
	return nil, fault.NotFound.Errorf("there is no %s %s", cmp.Or(o.kind, "pod, container or image"), name)
}

func (c *cli) lookPod(name string, o inspectOptions) (any, error) {
	named, err := objectNames([]string{name}, true)
	if err != nil {
		return nil, fault.NotFound.Errorf("%v", err) // perhaps an image such as registry/web
	}
	all, err := c.anyPods()
	if err != nil {
		return nil, err
	}
	if named[0].kind.Name != "Pod" {
		return nil, named[0].missing(o.namespace)
	}
	f, err := c.pick(all, o.namespace, name)
	return f.Pod, err
}

// leastID is the minimum length of an abbreviated ID.
const leastID = 4

func (c *cli) lookContainer(id string, _ inspectOptions) (any, error) {
	if err := c.connect(); err != nil {
		return nil, err
	}
	list, err := c.runtime.ListContainers(c.ctx, nil)
	if err != nil {
		return nil, criruntime.Fault(err)
	}
	id = podsync.RuntimeID(id)
	var found []string
	for _, container := range list {
		if len(id) >= leastID && strings.HasPrefix(container.Id, id) {
			found = append(found, container.Id)
		}
	}
	switch len(found) {
	case 0:
		return nil, fault.NotFound.Errorf("there is no container %s", id)
	case 1:
	default:
		return nil, usageError("%s begins the IDs of %d containers", id, len(found))
	}
	resp, err := c.runtime.ContainerStatus(c.ctx, found[0], true)
	if err != nil {
		return nil, criruntime.Fault(err)
	}
	return withInfo(resp.GetStatus(), resp.GetInfo())
}

func (c *cli) lookImage(name string, _ inspectOptions) (any, error) {
	resp, err := c.image(name, true)
	if err != nil {
		return nil, err
	}
	return withInfo(resp.GetImage(), resp.GetInfo())
}

// withInfo returns a CRI status under its JSON names, and the runtime's additional info, which is
// JSON or text.
func withInfo(status proto.Message, info map[string]string) (map[string]any, error) {
	data, err := protojson.Marshal(status)
	if err != nil {
		return nil, err
	}
	v := map[string]any{"status": json.RawMessage(data)}
	for key, text := range info {
		var inner any
		if json.Unmarshal([]byte(text), &inner) != nil {
			inner = text
		}
		v[key] = inner
	}
	return v, nil
}

// plainValue converts v to maps and lists under its JSON names.
func plainValue(v any) (plain any, err error) {
	data, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(data, &plain)
	}
	return plain, err
}
