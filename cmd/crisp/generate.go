package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
)

// generateCommand prints a systemd unit: for the agent with a directory of manifests, or for one of
// the agent's pods or workloads.
func generateCommand(c *cli) *cobra.Command {
	var manifests, namespace string
	cmd := &cobra.Command{Use: "generate systemd [TYPE/NAME] | systemd -f FILE", Short: "print a unit for the agent, or for a pod that systemd starts and stops", ValidArgs: []string{"systemd"}}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	var file string
	fs.StringVarP(&file, "filename", "f", "", "`manifest` that the unit applies and deletes")
	fs.StringVar(&manifests, "manifests", c.places().manifests, "`directory` of the agent's manifests")
	return runs(cmd, func(rest []string) error {
		if len(rest) == 0 || rest[0] != "systemd" || len(rest) > 2 || len(rest) == 2 && file != "" {
			return usageError("generate takes: systemd, and for a unit of its own a pod or -f FILE")
		}
		program, err := os.Executable()
		if err != nil {
			return err
		}
		for _, path := range []string{manifests, program, c.agentRoot} {
			if err := standsInUnit(path); err != nil {
				return err
			}
		}
		words := program + " --agent-root " + c.agentRoot + " --runtime-endpoint " + c.endpoint
		switch {
		case file != "":
			if file, err = filepath.Abs(file); err != nil {
				return err
			}
			return c.unitOfFile(words, file)
		case len(rest) == 2:
			return c.unitOfPod(words, rest[1], namespace)
		}
		return c.unitOfAgent(program, manifests)
	})
}

func standsInUnit(path string) error {
	if !filepath.IsAbs(path) || strings.ContainsAny(path, " \"\\%$") {
		return usageError("%q cannot stand in a unit: want an absolute path without blanks", path)
	}
	return nil
}

// unitOfPod prints a unit that starts and stops one of the agent's pods.
func (c *cli) unitOfPod(words, arg, namespace string) error {
	named, err := objectNames([]string{arg}, true)
	if err != nil {
		return err
	}
	t := named[0]
	if t.kind.Name != "Pod" {
		return usageError("%s: a unit is of a pod, or with -f of a manifest", t)
	}
	var pod v1.Pod
	if err := c.fetch(pathOf(podKind, namespace, t.name), nil, &pod); err != nil {
		return err
	}
	grace := ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)
	return c.printUnit("pod "+namespace+"/"+t.name, "", fmt.Sprintf(`ExecStart=%[1]s start -n %[2]s %[3]s
ExecStop=%[1]s stop -n %[2]s %[3]s
TimeoutStopSec=%[4]d`, words, namespace, t.name, grace+stopMargin))
}

// stopMargin is the time in seconds that a unit waits beyond the grace period of its pod.
const stopMargin = 30

// unitOfFile prints a unit that applies a manifest and deletes what it defines.
func (c *cli) unitOfFile(words, file string) error {
	if err := standsInUnit(file); err != nil {
		return err
	}
	docs, err := c.inputs([]string{file})
	if err != nil {
		return err
	}
	if _, err := c.read(docs, "default", "strict", nil); err != nil {
		return err
	}
	return c.printUnit("pods of "+file, "ConditionPathExists="+file+"\n", fmt.Sprintf(`ExecStart=%[1]s apply --wait -f %[2]s
ExecReload=%[1]s apply --wait -f %[2]s
ExecStop=%[1]s delete -f %[2]s`, words, file))
}

// printUnit prints a unit whose commands complete at once, and which stays active until it is
// stopped. Pods keep running when the agent ends, so the unit does not depend on it.
func (c *cli) printUnit(what, conditions, commands string) error {
	_, err := fmt.Fprintf(c.stdout, `[Unit]
Description=crisp: %s
Wants=crisp-agent.service
After=crisp-agent.service
%s
[Service]
Type=oneshot
RemainAfterExit=yes
%s

[Install]
WantedBy=multi-user.target
`, what, conditions, commands)
	return err
}

// unitOfAgent prints a unit that keeps the agent running.
func (c *cli) unitOfAgent(program, manifests string) error {
	_, err := fmt.Fprintf(c.stdout, `[Unit]
Description=crisp agent: runs the pods of %[2]s
Wants=crisp.service network-online.target
After=crisp.service network-online.target
# Whatever keeps it from starting, it is there again soon after that is mended.
StartLimitIntervalSec=0

[Service]
ExecStart=%[1]s --runtime-endpoint %[4]s agent --manifests %[2]s --root %[3]s
Restart=always
RestartSec=2
# Containers are the runtime's: they run on without the agent.
KillMode=process
Delegate=yes

[Install]
WantedBy=multi-user.target
`, program, manifests, c.agentRoot, c.endpoint)
	return err
}

// exportCommand prints an object as a manifest that can be applied to create it.
func exportCommand(c *cli) *cobra.Command {
	namespace, output := "", "yaml"
	cmd := &cobra.Command{Use: "export TYPE/NAME", Short: "print an object as a manifest", ValidArgsFunction: c.completeNamed}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	outputFlag(fs, &output, "yaml", "json")
	return runs(cmd, func(rest []string) error {
		what, err := objectNames(rest, true)
		if err != nil || len(what) != 1 || what[0].name == "" {
			return usageError("export takes one object: pod/NAME")
		}
		var u unstructured.Unstructured
		if err := c.fetch(pathOf(what[0].kind, namespace, what[0].name), nil, &u); err != nil {
			return err
		}
		strip(u.Object)
		delete(u.Object["metadata"].(map[string]any), "resourceVersion")
		return c.printValue(u.Object, output)
	})
}

// strip removes from an object what the agent has added, except its version, so that the object can
// be applied.
func strip(o map[string]any) {
	delete(o, "status")
	meta, _ := o["metadata"].(map[string]any)
	for _, key := range []string{"uid", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"} {
		delete(meta, key)
	}
	stripAnnotations(meta)
	spec, _ := o["spec"].(map[string]any)
	for _, key := range []string{"nodeName", "ephemeralContainers"} {
		delete(spec, key)
	}
	if o["kind"] == "Job" {
		delete(spec, "selector")
	}
	if template, ok := spec["template"].(map[string]any); ok {
		meta, _ := template["metadata"].(map[string]any)
		delete(meta, "creationTimestamp")
		stripAnnotations(meta)
	}
}

func stripAnnotations(meta map[string]any) {
	annotations, _ := meta["annotations"].(map[string]any)
	for key := range annotations {
		if strings.HasPrefix(key, "io.crisp.") || strings.HasPrefix(key, "kubernetes.io/config.") {
			delete(annotations, key)
		}
	}
	if len(annotations) == 0 {
		delete(meta, "annotations")
	}
}
