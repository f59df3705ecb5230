package manifest_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/test/golden"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
)

const container = "containers: [{name: a, image: \"i:1\"}]"

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec:
      containers: [{name: a, image: "i:1"}]
`

const statefulSet = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: dbs
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], storageClassName: fast, resources: {requests: {storage: 1Gi}}}
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: a, image: "i:1", volumeMounts: [{name: data, mountPath: /data}]}]
`

// cronJob is a CronJob whose spec begins with these lines.
func cronJob(spec string) string {
	return "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c}\nspec:\n  " + spec + "\n  jobTemplate:\n    spec: {template: {spec: {restartPolicy: Never, " + container + "}}}\n"
}

// All supported kinds, and the mistakes that can be made with them.
func TestKinds(t *testing.T) {
	for _, test := range []struct{ name, text, want, err string }{
		{"all", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: \"1\"}\n---\n" +
			"apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: prod}\nstringData: {a: \"1\"}\n---\n" +
			"apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: r}\nhandler: runc\noverhead: {podFixed: {memory: 10Mi}}\n---\n" +
			"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: p}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n---\n" +
			"apiVersion: v1\nkind: Service\nmetadata: {name: db}\nspec: {clusterIP: None, selector: {app: db}, ports: [{port: 80, targetPort: http}]}\nstatus: {loadBalancer: {}}\n---\n" +
			"apiVersion: v1\nkind: Namespace\nmetadata: {name: prod}\n---\n" + deployment +
			"---\napiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {spec: {restartPolicy: Never, " + container + "}}}\n",
			"configmap default/c, secret prod/s, runtimeclass r, persistentvolumeclaim default/p, service default/db, deployment default/d, job default/j", ""},
		{"a list", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}\n- " + strings.ReplaceAll(strings.TrimSpace(web), "\n", "\n  ") + "\n",
			"configmap default/c, pod default/web", ""},
		{"in a list", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: d}\n  dat: {}\n",
			"", "f:8: items[1].dat: unknown field"},
		{"in a template", strings.Replace(deployment, "image:", "imagee:", 1), "", "f:9: spec.template.spec.containers[0].imagee: unknown field"},
		{"rejected in a template", strings.Replace(deployment, "    spec:\n", "    spec:\n      resourceClaims: [{name: c}]\n", 1), "", "f:9: spec.template.spec.resourceClaims: needs device claims, which crisp does not have"},
		{"invalid in a template", strings.Replace(deployment, "name: a,", "name: A_,", 1), "", `f:9: spec.template.spec.containers[0].name: "A_": a lowercase RFC 1123 label`},
		{"selector", strings.Replace(deployment, "{labels: {app: d}}", "{labels: {app: e}}", 1), "", "f:7: spec.template.metadata.labels: do not match spec.selector"},
		{"restart policy of a deployment", strings.Replace(deployment, "    spec:\n", "    spec:\n      restartPolicy: Never\n", 1), "", `f:9: spec.template.spec.restartPolicy: "Never": want Always`},
		{"restart policy of a job", "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {spec: {" + container + "}}}\n", "", "spec.template.spec.restartPolicy: is missing: a job's is OnFailure or Never"},
		{"cron job", "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c}\nspec:\n  schedule: \"@daily\"\n  timeZone: Europe/Paris\n  jobTemplate:\n    metadata: {labels: {a: b}}\n    spec: {ttlSecondsAfterFinished: 1, template: {spec: {restartPolicy: Never, " + container + "}}}\n", "cronjob default/c", ""},
		{"schedule of a cron job", cronJob("schedule: \"61 * * * *\""), "", `f:5: spec.schedule: "61 * * * *": end of range (61) above maximum (59): 61`},
		{"no schedule", cronJob("suspend: true"), "", `spec.schedule: is missing`},
		{"zone in a schedule", cronJob("schedule: TZ=UTC"), "", `f:5: spec.schedule: "TZ=UTC": the time zone belongs into spec.timeZone`},
		{"zone", cronJob("timeZone: ../etc\n  schedule: \"@daily\""), "", `spec.timeZone "../etc" is not a time zone`},
		{"policy of a cron job", cronJob("schedule: \"@daily\"\n  concurrencyPolicy: Never"), "", `f:6: spec.concurrencyPolicy: "Never": want Allow, Forbid, Replace`},
		{"history of a cron job", cronJob("schedule: \"@daily\"\n  failedJobsHistoryLimit: -1"), "", "f:6: spec.failedJobsHistoryLimit: -1 is less than 0"},
		{"long name of a cron job", strings.Replace(cronJob("schedule: \"@daily\""), "name: c", "name: "+strings.Repeat("c", 53), 1), "", "f:3: metadata.name: has more than 52 characters"},
		{"rejected in a cron job", strings.Replace(cronJob("schedule: \"@daily\""), "template:", "podFailurePolicy: {}, template:", 1), "", "f:7: spec.jobTemplate.spec.podFailurePolicy: not supported"},
		{"invalid in a cron job", strings.Replace(cronJob("schedule: \"@daily\""), "Never", "Always", 1), "", `f:7: spec.jobTemplate.spec.template.spec.restartPolicy: "Always": want OnFailure, Never`},
		{"job of a file with a time to live", "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec:\n  ttlSecondsAfterFinished: 1\n  template: {spec: {restartPolicy: Never, " + container + "}}\n", "", "f:5: spec.ttlSecondsAfterFinished: only for a job that was applied"},
		{"config map key", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {\"a/b\": \"1\"}\n", "", `f:4: data[a/b]: "a/b": a valid config key`},
		{"config map number", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: 1}\n", "", "f:4: data[a]: want a string, got the number 1: quote it"},
		{"config map twice", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  a: x\n  a: y\n", "", "f:6: data[a]: is set twice"},
		{"secret of a type", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ntype: kubernetes.io/tls\n", "", "a secret of the type kubernetes.io/tls needs the key tls.crt"},
		{"secret that is no base64", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: \"!\"}\n", "", "illegal base64"},
		{"runtime class", "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: r}\n", "", "handler: is missing"},
		{"claim", "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: p}\nspec: {accessModes: [Sometimes]}\n", "", `f:4: spec.accessModes[0]: "Sometimes": want ReadWriteOnce`},
		{"group", "apiVersion: extensions/v1beta1\nkind: Deployment\nmetadata: {name: d}\n", "", `f:1: apiVersion: "extensions/v1beta1": want apps/v1`},
		{"what one node has no use for", "apiVersion: apps/v1\nkind: ReplicaSet\n", "", "f:2: kind: ReplicaSet is not supported: use a Deployment"},
		{"stateful set", statefulSet, "statefulset default/db", ""},
		{"name of a stateful set's claim", strings.Replace(statefulSet, "{name: data}", "{name: ../x}", 1), "", `f:7: spec.volumeClaimTemplates[0].metadata.name: "../x": a lowercase RFC 1123 label`},
		{"field of a stateful set's claim", strings.Replace(statefulSet, "accessModes", "volumeName: x, accessModes", 1), "", "f:8: spec.volumeClaimTemplates[0].spec.volumeName: there are no volumes to name"},
		{"no claim of that name", strings.Replace(statefulSet, "{name: data}", "{name: other}", 1), "", `the pod has no volume "data"`},
		{"update of a stateful set", strings.Replace(statefulSet, "  serviceName", "  updateStrategy: {type: OnDelete}\n  serviceName", 1), "", `f:5: spec.updateStrategy.type: "OnDelete": want RollingUpdate`},
		{"partition of a stateful set", strings.Replace(statefulSet, "  serviceName", "  updateStrategy: {rollingUpdate: {partition: 1}}\n  serviceName", 1), "", "f:5: spec.updateStrategy.rollingUpdate.partition: 1 is not between 0 and 0"},
		{"retention of a stateful set's claims", strings.Replace(statefulSet, "  serviceName", "  persistentVolumeClaimRetentionPolicy: {whenScaled: Delete}\n  serviceName", 1), "", `f:5: spec.persistentVolumeClaimRetentionPolicy.whenScaled: "Delete": want Retain`},
		{"name of a stateful set", strings.Replace(statefulSet, "{name: db}", "{name: d.b}", 1), "", "f:3: metadata.name"},
		{"surge", strings.Replace(deployment, "  selector", "  strategy: {rollingUpdate: {maxSurge: 1/2}}\n  selector", 1), "", `f:5: spec.strategy.rollingUpdate.maxSurge: "1/2": want a number or a percentage`},
		{"more replicas than a node could plan", strings.Replace(deployment, "  selector", "  replicas: 1000000000\n  selector", 1), "", "f:5: spec.replicas: 1000000000 is not between 0 and 10000"},
		{"more pods of a job than a node could plan", "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec:\n  parallelism: 2000000000\n  template: {spec: {restartPolicy: Never, " + container + "}}\n", "", "f:5: spec.parallelism: 2000000000 is not between 0 and 10000"},
		{"no surge and none unavailable", strings.Replace(deployment, "  selector", "  strategy: {rollingUpdate: {maxSurge: 0%, maxUnavailable: 0}}\n  selector", 1), "", "f:5: spec.strategy.rollingUpdate: no update is possible"},
		{"all unavailable and more", strings.Replace(deployment, "  selector", "  strategy: {rollingUpdate: {maxUnavailable: 101%}}\n  selector", 1), "", `"101%" is more than 100%`},
		{"surge of Recreate", strings.Replace(deployment, "  selector", "  strategy: {type: Recreate, rollingUpdate: {maxSurge: 1}}\n  selector", 1), "", "rollingUpdate: needs the type RollingUpdate"},
		{"owner", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\n  ownerReferences: [{kind: X}]\n", "", "f:5: metadata.ownerReferences: there is no garbage collector"},
	} {
		t.Run(test.name, func(t *testing.T) {
			objects, _, err := manifest.Read("f", []byte(test.text), node)
			var keys []string
			for _, o := range objects {
				keys = append(keys, manifest.Key(o))
			}
			if got := strings.Join(keys, ", "); got != test.want {
				t.Errorf("objects %q, want %q (%v)", got, test.want, err)
			}
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %s", err, test.err)
			}
		})
	}
}

// Options can accept fields that Kubernetes does not have, but not fields that the table rejects.
func TestUnknownFields(t *testing.T) {
	text := strings.Replace(web, "    ports", "    foo: 1\n    ports", 1)
	for _, test := range []struct {
		mode     manifest.Unknown
		warnings string
	}{{manifest.Warn, "f:9: spec.containers[0].foo: unknown field"}, {manifest.Ignore, ""}} {
		objects, warnings, err := manifest.Read("f", []byte(text), manifest.Options{Unknown: test.mode})
		if err != nil || len(objects) != 1 || warnings.Error() != test.warnings {
			t.Errorf("mode %d: %d objects, warnings %q, %v", test.mode, len(objects), warnings.Error(), err)
		}
		_, _, err = manifest.Read("f", []byte(strings.Replace(web, "    ports", "    volumeDevices: [{name: d}]\n    ports", 1)), manifest.Options{Unknown: test.mode})
		if err == nil || !strings.Contains(err.Error(), "volumeDevices: needs block volumes") {
			t.Errorf("mode %d: rejected fields pass: %v", test.mode, err)
		}
	}
}

// A class may carry what a scheduler needs, but its author is told that no scheduler reads it.
func TestSchedulingOfClass(t *testing.T) {
	text := "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: r}\nhandler: gvisor\nscheduling: {nodeSelector: {a: b}}\n"
	objects, warnings, err := manifest.Read("f", []byte(text), node)
	if want := "f:5: scheduling: is ignored: pods are not scheduled, they run on this node"; err != nil || len(objects) != 1 || warnings.Error() != want {
		t.Errorf("%d objects, warnings %q, %v; want %q", len(objects), warnings.Error(), err, want)
	}
}

// A Service is a name of its pods. Its author is told of what else it does in a cluster.
func TestServiceIsAName(t *testing.T) {
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: db}\nspec:\n"
	for spec, want := range map[string]string{
		"  selector: {app: db}\n  ports: [{port: 80}, {port: 81, targetPort: 81}, {port: 82, targetPort: http}]\n": "",
		"  selector: {app: db}\n  type: NodePort\n":                                                                "f:6: spec.type: NodePort is taken as ClusterIP, a name for the pods: hostPort publishes a port",
		"  type: ExternalName\n  externalName: example.org\n":                                                      "f:5: spec.type: ExternalName is taken as ClusterIP, a name for the pods: hostPort publishes a port",
		"  clusterIP: None\n": "f:4: spec.selector: is missing: the name leads nowhere",
		"  selector: {app: db}\n  ports:\n  - port: 80\n    targetPort: 8080\n": "f:8: spec.ports[0].targetPort: the name leads to the pods themselves: their port is 8080, not 80",
	} {
		objects, warnings, err := manifest.Read("f", []byte(service+spec), node)
		if err != nil || len(objects) != 1 || warnings.Error() != want {
			t.Errorf("%s\n%d objects, warnings %q, %v; want %q", spec, len(objects), warnings.Error(), err, want)
		}
	}
}

// Who asks for newer images is told which containers will not get any, also in a template.
func TestAutoUpdate(t *testing.T) {
	const at = `: metadata.annotations[image.crisp.io/auto-update]: `
	pod := func(value, spec string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  annotations: {image.crisp.io/auto-update: " + value + "}\nspec: " + spec + "\n"
	}
	for text, want := range map[string]string{
		pod("registry", `{containers: [{name: a, image: "reg.test/a:1"}, {name: b, image: "localhost/b"}, {name: c, image: "reg:5000/c"}]}`): "",
		pod("registry", `{containers: [{name: a, image: "nginx:1"}, {name: b, image: reg}]}`):                                                "f:5" + at + "container a is not updated: its image does not name a registry\nf:5" + at + "container b is not updated: its image does not name a registry",
		pod("registry", `{containers: [{name: a, image: "reg.test/a:1@sha256:`+strings.Repeat("0", 64)+`"}]}`):                               "f:5" + at + "container a is not updated: its image is named by digest",
		pod("registry", `{containers: [{name: a, image: "reg.test/a:1", imagePullPolicy: Never}]}`):                                          "f:5" + at + "container a is not updated: its imagePullPolicy is Never",
		pod("registry", `{restartPolicy: OnFailure, containers: [{name: a, image: "reg.test/a:1"}]}`):                                        "f:5" + at + "has no effect: restartPolicy is not Always",
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}, annotations: {image.crisp.io/auto-update: registry}}\n    spec: {containers: [{name: a, image: i}]}\n": "f:7: spec.template." + at[2:] + "container a is not updated: its image does not name a registry",
	} {
		objects, warnings, err := manifest.Read("f", []byte(text), node)
		if err != nil || len(objects) != 1 || warnings.Error() != want {
			t.Errorf("%s\n%d objects, warnings %q, %v; want %q", text, len(objects), warnings.Error(), err, want)
		}
	}
	if _, _, err := manifest.Read("f", []byte(pod("local", "{containers: [{name: a, image: i}]}")), node); err == nil || err.Error() != "f:5"+at+`"local": want registry` {
		t.Error(err)
	}
}

// Keys are case-sensitive, as in an API server. A key in another case must not set a field that the
// table rejects.
func TestKeyInOtherCase(t *testing.T) {
	text := strings.Replace(web, "    ports", "    VolumeDevices: [{name: d, devicePath: /dev/d}]\n    Image: other\n    ports", 1)
	objects, warnings, err := manifest.Read("f", []byte(text), manifest.Options{Unknown: manifest.Warn})
	if err != nil || len(objects) != 1 || len(warnings) != 2 {
		t.Fatalf("%d objects, warnings %q, %v", len(objects), warnings.Error(), err)
	}
	c := objects[0].(*v1.Pod).Spec.Containers[0]
	if c.VolumeDevices != nil || c.Image != "example.org/web" {
		t.Errorf("unknown keys are in effect: image %q, volumeDevices %v", c.Image, c.VolumeDevices)
	}
	if _, _, err := manifest.Read("f", []byte(text), manifest.Options{}); err == nil || !strings.Contains(err.Error(), "VolumeDevices: unknown field") {
		t.Errorf("strict: %v", err)
	}
}

// A template's pods get the defaults of pods; the hash of the template does not include them.
func TestTemplate(t *testing.T) {
	read := func(text string) *appsv1.Deployment {
		objects, _, err := manifest.Read("f", []byte(text), node)
		if err != nil {
			t.Fatal(err)
		}
		return objects[0].(*appsv1.Deployment)
	}
	d := read(deployment)
	if d.Spec.Template.Spec.RestartPolicy != v1.RestartPolicyAlways || *d.Spec.Replicas != 1 || d.Spec.Template.Spec.SecurityContext == nil {
		t.Errorf("no defaults: %+v", d.Spec)
	}
	hash := d.Spec.Template.Annotations[manifest.AnnotationHash]
	if hash == "" || read(strings.Replace(deployment, "  selector", "  replicas: 4\n  selector", 1)).Spec.Template.Annotations[manifest.AnnotationHash] != hash {
		t.Error("the number of replicas changes the template's hash")
	}
	if read(strings.Replace(deployment, "i:1", "i:2", 1)).Spec.Template.Annotations[manifest.AnnotationHash] == hash {
		t.Error("the image does not change the template's hash")
	}
}

// The table covers every field of v1.Pod, or rejects it as not supported, and has no line for a
// field that does not exist.
func TestEveryField(t *testing.T) {
	known := map[string]bool{}
	walkType(reflect.TypeFor[v1.Pod](), "", known, 0)
	for _, path := range manifest.Paths("Pod") {
		if !known[path] {
			t.Errorf("the table has %s, which v1.Pod does not", path)
		}
	}
	for _, test := range []struct{ path, want string }{
		{"spec.containers[].image", "honoured"},
		{"spec.initContainers[].image", "honoured"},
		{"spec.nodeName", "honoured"},
		{"spec.schedulerName", "ignored"},
		{"spec.resourceClaims", "rejected"},
		{"spec.volumes[].csi.driver", "rejected"},
		{"spec.somethingNew", "rejected"},
	} {
		if got := manifest.SupportOf("Pod", test.path); got != test.want {
			t.Errorf("%s is %s, want %s", test.path, got, test.want)
		}
	}
}

// A field that a new release of Kubernetes adds below a line of the table counts as honoured
// although nothing follows it: it shows up here, for a decision.
func TestFieldsWithoutLine(t *testing.T) {
	var list []string
	for _, typ := range manifest.Types() {
		known := map[string]bool{}
		walkType(typ, "", known, 0)
		for path := range known {
			leaf := path != "" && !strings.HasSuffix(path, "[]") && !strings.HasSuffix(path, ".") // of exported fields
			shared := strings.HasPrefix(path, "spec.template.") || strings.HasPrefix(path, "spec.jobTemplate.") || strings.HasPrefix(path, "spec.initContainers[].") || strings.HasPrefix(path, "spec.ephemeralContainers[].")
			if leaf && !shared && !manifest.HasLine(typ.Name(), path) && manifest.SupportOf(typ.Name(), path) == "honoured" {
				list = append(list, typ.Name()+" "+path+"\n")
			}
		}
	}
	slices.Sort(list)
	golden.Check(t, "testdata/fields.txt", strings.Join(list, ""))
}

// walkType notes the paths of all fields of a type, as the table writes them.
func walkType(typ reflect.Type, path string, known map[string]bool, depth int) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
		if typ.Kind() != reflect.Pointer {
			path += "[]"
		}
		typ = typ.Elem()
	}
	known[path] = true
	if typ.Kind() != reflect.Struct || depth > 12 {
		return
	}
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && f.Anonymous:
			walkType(f.Type, path, known, depth+1)
		case path == "":
			known[name] = true
			walkType(f.Type, name, known, depth+1)
		default:
			known[path+"."+name] = true
			walkType(f.Type, path+"."+name, known, depth+1)
		}
	}
}

// Every check is for an existing field: a misspelt key would check nothing.
func TestEveryCheck(t *testing.T) {
	left, seen := manifest.Checks(), map[reflect.Type]bool{}
	var walk func(typ reflect.Type, place, within string)
	walk = func(typ reflect.Type, place, within string) {
		for typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		delete(left, place)
		if typ.Kind() == reflect.Slice {
			walk(typ.Elem(), place+"[]", "")
		}
		if typ.Kind() != reflect.Struct || within == "" && seen[typ] {
			return
		}
		seen[typ] = true
		delete(left, typ.Name())
		if within == "" {
			within = typ.Name()
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				walk(f.Type, within+"."+name, "")
			} else if f.Anonymous {
				walk(f.Type, "", within)
			}
		}
	}
	for _, typ := range manifest.Types() {
		walk(typ, "", "")
	}
	for place := range left {
		t.Errorf("no kind has %s", place)
	}
}
