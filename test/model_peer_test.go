package test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/model"
	"github.com/crisp-cri/crisp/test/model/play"
	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/crisp-cri/crisp/test/testns"
)

// The model's scripts are played on other runtimes, without kills, to find where they
// answer differently. MODEL_PEER is the path of a CRI socket, "containerd" for Debian's, or
// "crispd", which must not differ. MODEL_FOR, MODEL_SEED and MODEL_SCRIPT are as in
// TestModel. MODEL_REGISTRY is the address on loopback that the peer pulls from, for peers whose
// configuration names registries without TLS. A difference that is not in knownDifferences fails
// the test.
func TestModelOfPeer(t *testing.T) {
	testenv.Need(t, "model-peer")
	p := startPeer(t, os.Getenv("MODEL_PEER"))
	if file := os.Getenv("MODEL_SCRIPT"); file != "" {
		s, err := play.Parse(string(read(t, file)))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		t.Logf("history:\n%v", p.play(s, 0))
		p.report()
		return
	}
	seed, err := strconv.ParseUint(os.Getenv("MODEL_SEED"), 10, 64)
	if err != nil {
		seed = 1
	}
	life, err := time.ParseDuration(os.Getenv("MODEL_FOR"))
	if err != nil {
		life = time.Minute
	}
	began, histories, events := time.Now(), 0, 0
	for ; p.stuck == nil && (histories == 0 || time.Since(began) < life); histories++ {
		n := seed + uint64(histories)
		events += len(p.play(play.Generate(n, play.Peer), n))
	}
	t.Logf("%s: %d histories of %d events from seed %d on in %v", p.runtime, histories, events, seed, time.Since(began).Round(time.Millisecond))
	p.report()
}

// A peer is another runtime, with its differences.
type peer struct {
	*modelNode
	runtime string // its name and version
	kinds   map[string]*kindOfDifference
	stuck   error // why it cannot remove its pods, so that no more scripts can be played
}

// A kindOfDifference stands for similar differences.
type kindOfDifference struct {
	what   string
	known  *knownDifference // nil if there is no reason yet
	count  int
	first  model.Difference
	seed   uint64
	script play.Script // the shortest so far
}

func startPeer(t *testing.T, name string) *peer {
	p := &peer{modelNode: &modelNode{t: t}, kinds: make(map[string]*kindOfDifference)}
	switch name {
	case "containerd":
		p.n = startContainerd(t)
	case "crispd":
		p.n, p.config = startNode(t)
	default:
		if testns.Isolated() {
			t.Fatal("the peer is in another network namespace: it could not pull our images")
		}
		var err error
		if p.n, err = newNode(t.TempDir(), buildOnce(t)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(p.n.dir) })
		p.n.socket = name
		if p.n.conn, err = grpc.NewClient("unix://"+name, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.n.conn.Close() })
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	version, err := p.Runtime().Version(ctx, &cri.VersionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	p.runtime = version.RuntimeName + " " + version.RuntimeVersion
	// Scripts end with the removal of all pods that exist.
	pods, err := p.Runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil || len(pods.Items) > 0 {
		t.Fatalf("%s has pods of others: %v, %v", p.runtime, pods.GetItems(), err)
	}
	p.serveImages()
	image := &cri.ImageSpec{Image: p.Ref("")}
	if _, err := p.Images().PullImage(ctx, &cri.PullImageRequest{Image: image}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = p.Images().RemoveImage(context.WithoutCancel(t.Context()), &cri.RemoveImageRequest{Image: image})
	})
	return p
}

// serveImages serves the images of the scripts on loopback, from where runtimes pull
// without TLS.
func (p *peer) serveImages() {
	registry, err := newRegistryAt(cmp.Or(os.Getenv("MODEL_REGISTRY"), "127.0.0.1:0"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(registry.close)
	if err := p.n.useRegistry(registry); err != nil {
		p.t.Fatal(err)
	}
	image, err := testbinImage(p.n.testbin)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, name := range []string{"", "spare"} {
		config, err := image.ConfigFile()
		if err != nil {
			p.t.Fatal(err)
		}
		config = config.DeepCopy()
		config.Config.Labels = map[string]string{"name": name} // for an ID of its own
		if image, err = mutate.ConfigFile(image, config); err != nil {
			p.t.Fatal(err)
		}
		_, ref, _ := strings.Cut(p.Ref(name), "/")
		if err := p.n.push(ref, image); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *peer) Ref(image string) string {
	return p.n.registry.host() + "/" + cmp.Or(image, "testbin") + ":latest"
}

// Left is what lists show: what else a runtime keeps is unknown.
func (p *peer) Left() []string { return nil }

// play plays s, and records the differences by kind.
func (p *peer) play(s play.Script, seed uint64) model.History {
	h, all := p.differences(s)
	for _, d := range all {
		known := p.explain(d)
		what := d.Kind()
		if known != nil {
			what = known.String()
		}
		k := p.kinds[what]
		if k == nil {
			k = &kindOfDifference{what: what, known: known, first: d, seed: seed, script: about(s, d)}
			p.kinds[what] = k
		}
		if k.count++; k.seed != seed && len(about(s, d).String()) < len(k.script.String()) {
			k.first, k.seed, k.script = d, seed, about(s, d)
		}
	}
	return h
}

func (p *peer) differences(s play.Script) (model.History, []model.Difference) {
	p.t.Helper()
	h, err := play.Record(p.t.Context(), p, s)
	if err != nil {
		p.t.Fatalf("%v\n\nscript:\n%v\nhistory:\n%v", err, s, h)
	}
	all, err := model.Rules{LateHandlers: true, LateEvents: true}.Differences(h)
	if err != nil {
		p.t.Errorf("%v\n\nscript:\n%v\nhistory:\n%v", err, s, h)
	}
	p.clean()
	return h, all
}

// clean removes what the script has not been able to remove.
func (p *peer) clean() {
	ctx, cancel := context.WithTimeout(p.t.Context(), 2*time.Minute)
	defer cancel()
	for {
		pods, err := p.Runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		if err == nil && len(pods.Items) == 0 {
			p.stuck = nil
			return
		}
		for _, sb := range pods.GetItems() {
			_, _ = p.Runtime().StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sb.Id})
			if _, err := p.Runtime().RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sb.Id}); err != nil && ctx.Err() == nil {
				p.stuck = fmt.Errorf("sandbox %s cannot be removed: %w", sb.Id, err)
			}
		}
		if ctx.Err() != nil {
			p.stuck = cmp.Or(p.stuck, err)
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// about returns the steps of a script that concern the pod, or the images, of the
// difference.
func about(s play.Script, d model.Difference) play.Script {
	var short play.Script
	for _, r := range s.Rounds {
		r = slices.DeleteFunc(slices.Clone(r), func(st play.Step) bool {
			return d.Call.Pod != "" && st.Call.Pod != d.Call.Pod || d.Call.Pod == "" && d.Call.Image != "" && st.Call.Image == ""
		})
		if len(r) > 0 {
			short.Rounds = append(short.Rounds, r)
		}
	}
	return short
}

// report lists the kinds of differences, those without a reason last and with a short
// script.
func (p *peer) report() {
	if p.stuck != nil {
		say := p.t.Errorf
		if p.explain(model.Difference{Call: model.Call{Verb: model.RemovePod}, Answer: model.Answer{Code: model.Trouble, Text: p.stuck.Error()}}) != nil {
			say = p.t.Logf
		}
		say("no more was played: %v", p.stuck)
	}
	for _, k := range slices.SortedFunc(maps.Values(p.kinds), func(a, b *kindOfDifference) int { return b.count - a.count }) {
		if k.known != nil {
			p.t.Logf("%d times, seed %d: %s\n  %s\n  answer: %v\nscript:\n%v", k.count, k.seed, k.what, k.known.reason, k.first.Answer, k.script)
		}
	}
	for _, k := range slices.SortedFunc(maps.Values(p.kinds), func(a, b *kindOfDifference) int { return b.count - a.count }) {
		if k.known == nil {
			p.t.Errorf("%d times, seed %d: %s\n%v\nscript:\n%v", k.count, k.seed, k.what, k.first.Why, p.shrink(k))
		}
	}
}

// shrink searches for a minute for a shorter script with the same difference.
func (p *peer) shrink(k *kindOfDifference) play.Script {
	end := time.Now().Add(time.Minute)
	shows := func(s play.Script) bool {
		if p.stuck != nil || time.Now().After(end) {
			return false
		}
		_, all := p.differences(s)
		return slices.ContainsFunc(all, func(d model.Difference) bool {
			return p.explain(d) == nil && d.Call.Verb == k.first.Call.Verb && d.Got() == k.first.Got()
		})
	}
	return play.Shrink(k.script, 100, shows)
}

// A knownDifference is one with a known reason.
type knownDifference struct {
	runtime string // prefix of its name and version
	verbs   []model.Verb
	in      []string // possible states of the object; none = any
	got     string   // regular expression for the short answer
	text    string   // regular expression for an error's code and text
	reason  string
}

func (k *knownDifference) String() string {
	verbs := make([]string, len(k.verbs))
	for i, v := range k.verbs {
		verbs[i] = string(v)
	}
	return fmt.Sprintf("%s in %s: %s %s", strings.Join(verbs, ", "), cmp.Or(strings.Join(k.in, "|"), "any state"), k.got, k.text)
}

// explain returns the entry that matches the difference, or nil.
func (p *peer) explain(d model.Difference) *knownDifference {
	for i := range knownDifferences {
		k := &knownDifferences[i]
		if strings.HasPrefix(p.runtime, k.runtime) && slices.Contains(k.verbs, d.Call.Verb) &&
			(len(k.in) == 0 || slices.ContainsFunc(k.in, func(in string) bool { return slices.Contains(d.In, in) })) &&
			regexp.MustCompile("^(?:"+k.got+")$").MatchString(d.Got()) && regexp.MustCompile(k.text).MatchString(d.Answer.Text) {
			return k
		}
	}
	return nil
}

// codeUnsaid is the reason for errors that are right, but whose code the proto does not
// name.
const codeUnsaid = "it refuses as the model does, with the code Unknown; the proto names no code for it"

var knownDifferences = []knownDifference{
	{
		"containerd ", []model.Verb{model.RunPod, model.Create}, nil, "trouble|bad-state", "is reserved for",
		"a request for a name that is taken fails, also if it is the same one again, and with the code Unknown, or since 2.0 FailedPrecondition; the proto does not promise more, and the kubelet raises the attempt, which is part of the name",
	},
	{
		"containerd 1.6", []model.Verb{model.StopPod}, []string{"none"}, "not-found", "try to find sandbox",
		"StopPodSandbox of a sandbox that is gone is an error, though the proto says it \"must not return an error if all relevant resources have already been reclaimed\"",
	},
	{
		"containerd ", []model.Verb{model.Create}, nil, "not-found", "no running task found|task .* not found",
		"of a sandbox that was stopped it looks for the task, which is gone: the code is wrong, for the sandbox is there, and the refusal is right",
	},
	{"containerd ", []model.Verb{model.Create}, nil, "trouble", "sandbox container .* is not running", codeUnsaid},
	{"containerd ", []model.Verb{model.Start}, nil, "trouble", `is not running|container is in CONTAINER_\w+ state|failed to set starting state`, codeUnsaid},
	{
		"containerd ", []model.Verb{model.Start}, nil, "trouble", "failed to create containerd task: .*namespace path: lstat .*no such file",
		"the pod was stopped meanwhile, and with its pause process its namespaces went; " + codeUnsaid,
	},
	{
		"containerd ", []model.Verb{model.Start}, nil, "trouble", "failed to create shim task: ttrpc: closed",
		"the pod was stopped meanwhile, and its shim went with it; " + codeUnsaid,
	},
	{
		"containerd ", []model.Verb{model.RemovePod}, nil, "trouble", "container is in starting state, can't be removed",
		"a start that its client has given up goes on, and nothing of the pod can be removed meanwhile, though the proto says that containers which run \"must be forcibly terminated and removed\"",
	},
	{
		"containerd ", []model.Verb{model.StopPod, model.RemovePod}, nil, "trouble", "failed to destroy network for sandbox .*no such device",
		"two calls take down the network of one sandbox side by side, and the plugin of one finds it half gone; who tries again succeeds",
	},
	{"containerd ", []model.Verb{model.Reopen}, []string{"created", "exited"}, "trouble", "container is not running", codeUnsaid},
	{"cri-o 1.", []model.Verb{model.Create, model.Update, model.Reopen}, nil, "trouble", "not found: ID does not exist", codeUnsaid},
	{
		"cri-o 1.", []model.Verb{model.StopPod, model.RemovePod}, nil, "trouble", "from index: no such id",
		"a sandbox whose removal its client has given up is half removed: it is listed for good, and each further removal fails; only a restart of the runtime helps",
	},
	{
		"cri-o 1.", []model.Verb{model.Reopen}, []string{"created"}, "ok", "",
		"its monitor opens the log when the container is created, and can open it anew from then on",
	},
	{
		"cri-o 1.", []model.Verb{model.Start, model.Update, model.Reopen}, []string{"exited"}, "trouble",
		"is not in created state|is not running or created state|container is not running", codeUnsaid,
	},
	{
		"cri-o 1.", []model.Verb{model.Update}, nil, "trouble", "cgroup controller `cpu` is not available",
		"the cgroup v2 hierarchy that it was given has no controllers, as on a hybrid host",
	},
	{
		"cri-o 1.", []model.Verb{model.StopPod, model.RemovePod}, nil, "trouble", "context deadline exceeded",
		"it waits for what another call holds of the sandbox until its own deadline; the proto does not promise more",
	},
	{"cri-o 1.", []model.Verb{model.Create}, nil, "trouble", "does not resolve to an image ID", codeUnsaid},
	{
		"cri-o 1.", []model.Verb{model.Create}, nil, "trouble", "userdata/shm.: No such file",
		"a sandbox whose removal its client has given up takes containers, for which it has no files any more",
	},
	{"cri-o 1.", []model.Verb{model.Create}, nil, "trouble", "CreateContainer failed as the sandbox was stopped", codeUnsaid},
	{
		"cri-o 1.", []model.Verb{model.RunPod}, []string{"not ready", "not ready, of another request"}, "ok", "",
		"it takes a request for a name that is taken for a repeated one, and answers with the sandbox of that name though that has been stopped; the kubelet raises the attempt, which is part of the name",
	},
	{
		"cri-o 1.", []model.Verb{model.PodStatus, model.SeesPod}, []string{"ready"}, "ok not-ready", "",
		"the sandbox that RunPodSandbox answered with had been stopped, as above",
	},
	{
		"cri-o 1.", []model.Verb{model.RunPod, model.Create}, nil, "trouble", "name is reserved|context deadline exceeded",
		"a request for a name that another call holds, as of a sandbox that is being removed, waits for that until its own deadline; the proto does not promise more",
	},
	{
		"cri-o 1.", []model.Verb{model.SeesContainer, model.Status}, []string{"created"}, "ok exited", "",
		"a container that was created and never started has exited once its pod is stopped, for its first process was killed; the proto does not say",
	},
}
