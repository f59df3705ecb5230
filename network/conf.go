package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/regular"
	"github.com/crisp-cri/crisp/network/bridge"
)

// A conf is the content of the configuration directory at one time. It does not change once it
// is published.
type conf struct {
	list *libcni.NetworkConfigList // nil if there is no usable one
	file string
	ours *bridge.Net // not nil if list is the default network
	bad  []badFile   // skipped, in lexical order
	err  error       // why list is nil

	plugins *health // the plugins' answers to STATUS; nil if they are not asked
}

type badFile struct {
	path string
	err  error
}

// same reports whether c and d result in the same attachments and the same messages.
func (c *conf) same(d *conf) bool {
	if (c.list == nil) != (d.list == nil) || c.file != d.file || fmt.Sprint(c.err) != fmt.Sprint(d.err) {
		return false
	}
	if c.list != nil && !bytes.Equal(c.list.Bytes, d.list.Bytes) {
		return false
	}
	return slices.EqualFunc(c.bad, d.bad, func(a, b badFile) bool {
		return a.path == b.path && a.err.Error() == b.err.Error()
	})
}

// read chooses the network to use.
func (n *Network) read() *conf {
	files, err := libcni.ConfFiles(n.o.ConfDir, []string{".conflist", ".conf", ".json"})
	if err != nil {
		return &conf{err: fault.Unavailable.Errorf("CNI configuration: %w", err)}
	}
	slices.Sort(files)
	ours := filepath.Join(n.o.DefaultDir, defaultFile)
	files = slices.DeleteFunc(files, func(f string) bool { return f == ours })

	c := &conf{}
	for _, file := range files {
		list, err := parse(file)
		if err != nil {
			c.bad = append(c.bad, badFile{file, err})
			continue
		}
		c.list, c.file = list, file
		return c
	}
	awaited := n.awaited()
	switch {
	case len(c.bad) > 0:
		var text []string
		for _, b := range c.bad {
			text = append(text, fmt.Sprintf("%s: %v", b.path, b.err))
		}
		c.err = fault.Unavailable.Errorf("no usable CNI configuration: %s", strings.Join(text, "; "))
	case n.o.DefaultDir == "":
		c.err = fault.Unavailable.Errorf("no CNI configuration in %s", n.o.ConfDir)
	case awaited != "":
		c.err = fault.Unavailable.Errorf("no CNI configuration in %s: %s", n.o.ConfDir, awaited)
	default:
		c.file = ours
		if c.ours, c.err = n.writeDefault(ours); c.err != nil {
			c.err = fault.Unavailable.Errorf("default network: %w", c.err)
			break
		}
		if c.list, c.err = parse(ours); c.err != nil {
			c.err = fault.Unavailable.Errorf("default network: %w", c.err)
		}
	}
	return c
}

// awaited returns why no pod may be attached to the default network now; "" if pods may.
func (n *Network) awaited() string {
	if n.o.Awaited == nil {
		return ""
	}
	return n.o.Awaited()
}

// parse reads one configuration file. A file with a single plugin becomes a list of one, and
// plugins in their own files (CNI 1.1, loadOnlyInlinedPlugins) become part of the list, so that
// DEL needs only the list's bytes.
func parse(file string) (*libcni.NetworkConfigList, error) {
	list, err := parseFile(file)
	if err != nil {
		return nil, err
	}
	if err := utils.ValidateNetworkName(list.Name); err != nil {
		return nil, errors.New(err.Msg + ": " + err.Details)
	}
	// A list without a version is CNI 0.1.0.
	if v := list.CNIVersion; v != "" && !slices.Contains(version.All.SupportedVersions(), v) {
		return nil, fmt.Errorf("cniVersion %q is not supported", v)
	}
	return list, nil
}

func parseFile(file string) (*libcni.NetworkConfigList, error) {
	data, err := regular.ReadFile(file, regular.MaxConfig)
	if err != nil {
		return nil, err
	}
	if filepath.Ext(file) != ".conflist" {
		one, err := libcni.NetworkPluginConfFromBytes(data)
		if err != nil {
			return nil, err
		}
		//lint:ignore SA1019 users have such files, and the kubelet's documents show them
		return libcni.ConfListFromConf(one)
	}
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil || list.LoadOnlyInlinedPlugins {
		return list, err
	}
	own, err := libcni.ConfFiles(filepath.Join(filepath.Dir(file), list.Name), []string{".conf"})
	if err != nil {
		return nil, err
	}
	slices.Sort(own)
	for _, file := range own {
		data, err := regular.ReadFile(file, regular.MaxConfig)
		if err != nil {
			return nil, err
		}
		p, err := libcni.NetworkPluginConfFromBytes(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		list.Plugins = append(list.Plugins, p)
	}
	if len(list.Plugins) == 0 {
		return nil, errors.New("it has no plugins")
	}
	whole := make(map[string]any)
	if err := json.Unmarshal(list.Bytes, &whole); err != nil {
		return nil, err
	}
	var plugins []json.RawMessage
	for _, p := range list.Plugins {
		plugins = append(plugins, p.Bytes)
	}
	whole["plugins"] = plugins
	whole["loadOnlyInlinedPlugins"] = true
	if list.Bytes, err = json.Marshal(whole); err != nil {
		return nil, err
	}
	return list, nil
}
