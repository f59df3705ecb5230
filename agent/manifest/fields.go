package manifest

import "strings"

// support says what becomes of a field.
type support uint8

const (
	rejected support = iota // an error that names it
	honoured                // crisp acts upon it
	ignored                 // without meaning on one node: accepted, no effect by design
)

// fields lists what is not rejected with the common sentence. A line covers what
// is below it as well, unless a longer line says otherwise; "[]" stands for any
// index or key. initContainers follow the lines of containers.
//
// This table is also what the reference of supported fields is made of.
var fields = parseTable(`
apiVersion                                        honoured
kind                                              honoured
metadata.name                                     honoured
metadata.namespace                                honoured
metadata.labels                                   honoured
metadata.annotations                              honoured
metadata.uid                                      rejected the agent computes it
metadata.generateName                             rejected give the pod a name
status                                            rejected the agent writes it

spec.activeDeadlineSeconds                        rejected not supported yet
spec.automountServiceAccountToken                 ignored
spec.containers[].args                            honoured
spec.containers[].command                         honoured
spec.containers[].env[].name                      honoured
spec.containers[].env[].value                     honoured
spec.containers[].env[].valueFrom.fieldRef        honoured
spec.containers[].image                           honoured
spec.containers[].imagePullPolicy                 honoured
spec.containers[].name                            honoured
spec.containers[].ports                           honoured
spec.containers[].resizePolicy                    ignored
spec.containers[].resources.limits                honoured
spec.containers[].resources.requests              honoured
spec.containers[].resources.claims                rejected needs device claims, which crisp does not have
spec.containers[].securityContext.allowPrivilegeEscalation  honoured
spec.containers[].securityContext.capabilities    honoured
spec.containers[].securityContext.privileged      honoured
spec.containers[].securityContext.procMount       honoured
spec.containers[].securityContext.readOnlyRootFilesystem    honoured
spec.containers[].securityContext.runAsGroup      honoured
spec.containers[].securityContext.runAsNonRoot    honoured
spec.containers[].securityContext.runAsUser       honoured
spec.containers[].securityContext.seccompProfile  honoured
spec.containers[].securityContext.windowsOptions  rejected crisp runs Linux containers
spec.containers[].stdin                           honoured
spec.containers[].stdinOnce                       honoured
spec.containers[].tty                             honoured
spec.containers[].volumeDevices                   rejected needs block volumes, which crisp does not have
spec.containers[].volumeMounts[].mountPath        honoured
spec.containers[].volumeMounts[].mountPropagation honoured
spec.containers[].volumeMounts[].name             honoured
spec.containers[].volumeMounts[].readOnly         honoured
spec.containers[].workingDir                      honoured
spec.dnsConfig                                    honoured
spec.dnsPolicy                                    honoured
spec.enableServiceLinks                           ignored
spec.ephemeralContainers                          rejected they are added to a running pod, not to a manifest
spec.hostAliases                                  honoured
spec.hostIPC                                      honoured
spec.hostNetwork                                  honoured
spec.hostPID                                      honoured
spec.hostname                                     honoured
spec.hostUsers                                    honoured
spec.initContainers                               honoured
spec.nodeName                                     honoured
spec.os                                           honoured
spec.preemptionPolicy                             ignored
spec.resourceClaims                               rejected needs device claims, which crisp does not have
spec.restartPolicy                                honoured
spec.schedulerName                                ignored
spec.securityContext.runAsGroup                   honoured
spec.securityContext.runAsNonRoot                 honoured
spec.securityContext.runAsUser                    honoured
spec.securityContext.seccompProfile               honoured
spec.securityContext.supplementalGroups           honoured
spec.securityContext.sysctls                      honoured
spec.securityContext.windowsOptions               rejected crisp runs Linux containers
spec.serviceAccount                               honoured
spec.serviceAccountName                           honoured
spec.shareProcessNamespace                        honoured
spec.terminationGracePeriodSeconds                honoured
spec.tolerations                                  ignored
spec.topologySpreadConstraints                    ignored
spec.volumes[].emptyDir                           honoured
spec.volumes[].hostPath                           honoured
spec.volumes[].name                               honoured
`)

const notYet = "not supported yet"

type fieldRule struct {
	support support
	text    string // for rejected
}

func parseTable(table string) map[string]fieldRule {
	rules := map[string]fieldRule{}
	for line := range strings.Lines(table) {
		path, rest, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		word, text, _ := strings.Cut(strings.TrimSpace(rest), " ")
		switch word {
		case "honoured":
			rules[path] = fieldRule{support: honoured}
		case "ignored":
			rules[path] = fieldRule{support: ignored}
		case "rejected":
			rules[path] = fieldRule{rejected, text}
		default:
			panic("manifest: bad line in the table of fields: " + line)
		}
	}
	return rules
}

// inner holds the paths that lie on the way to a line of the table: they are
// entered, whatever becomes of their children.
var inner = func() map[string]bool {
	paths := map[string]bool{}
	for path := range fields {
		for i, r := range path {
			if r == '.' || r == '[' {
				paths[path[:i]] = true
				if r == '[' {
					paths[path[:i+2]] = true
				}
			}
		}
	}
	return paths
}()

// supportOf looks up a path such as "spec.containers[].image"; text says why a
// field is rejected.
func supportOf(path string) (support, string) {
	if rest, ok := strings.CutPrefix(path, "spec.initContainers[]"); ok {
		path = "spec.containers[]" + rest
	}
	for p := path; p != ""; {
		if r, ok := fields[p]; ok {
			text := r.text
			if text == "" {
				text = notYet
			}
			return r.support, text
		}
		if p == path && inner[p] {
			return honoured, ""
		}
		i := strings.LastIndexAny(p, ".[")
		if i < 0 {
			break
		}
		p = p[:i]
	}
	return rejected, notYet
}
