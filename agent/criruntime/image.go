package criruntime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/pull"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// A puller pulls images, and checks that pods may use them.
type puller struct {
	o      Options
	events podEvents
	queue  *queue
}

// ensure pulls the image of a container if its pull policy says so. It returns the reference to
// create the container from, and the image.
func (p *puller) ensure(ctx, interrupt context.Context, pod *v1.Pod, c *v1.Container, sandbox *cri.PodSandboxConfig) (string, *cri.Image, error) {
	handler, err := handlerOf(pod, p.o.Objects, p.o.Host)
	if err != nil {
		return "", nil, Reasoned("ErrImagePull", err)
	}
	spec := &cri.ImageSpec{Image: tagged(c.Image), Annotations: pod.Annotations, RuntimeHandler: handler}
	image, err := p.image(ctx, spec)
	if err != nil {
		return "", nil, err
	}
	switch {
	case c.ImagePullPolicy == v1.PullNever && image == nil:
		text := fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image)
		p.events.record(pod, c.Name, "", v1.EventTypeWarning, "ErrImageNeverPull", text)
		return "", nil, Reasoned("ErrImageNeverPull", errors.New(text))
	case c.ImagePullPolicy != v1.PullAlways && image != nil:
		may, err := p.mayUse(pod, spec.Image, image)
		if err != nil {
			return "", nil, Reasoned("ErrImagePull", err)
		}
		if may {
			p.events.record(pod, c.Name, "", v1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine", c.Image))
			return image.Id, image, nil
		}
		if c.ImagePullPolicy == v1.PullNever {
			text := fmt.Sprintf("Container image %q is present with pull policy of Never, but the pod does not have the credentials that it was pulled with", c.Image)
			p.events.record(pod, c.Name, "", v1.EventTypeWarning, "ErrImageNeverPull", text)
			return "", nil, Reasoned("ErrImageNeverPull", errors.New(text))
		}
	}
	ref, by, err := p.pull(stage.Join(interrupt, ctx), pod, c, spec, sandbox)
	stage.Next(ctx, "image")
	if err != nil {
		return "", nil, err
	}
	if image, err = p.image(ctx, &cri.ImageSpec{Image: ref, RuntimeHandler: handler}); err == nil && image == nil {
		err = Reasoned("ImageInspectError", fmt.Errorf("image %s vanished after it was pulled", c.Image))
	}
	if err == nil && p.o.Pulled != nil {
		if err := p.o.Pulled.Done(spec.Image, image.Id, by); err != nil { // without a record other pods have to pull it again
			p.o.Log.WarnContext(ctx, "pull not noted", "err", err)
		}
	}
	return ref, image, err
}

// longestPull bounds a pull that no pod waits for.
const longestPull = time.Hour

// Newest pulls what the tag of a container's image means now, without events, and returns that image and
// the one that runs, which is nil if it is not there any more.
func (d *Driver) Newest(ctx context.Context, pod *v1.Pod, c *v1.Container, runs string) (newest, running *cri.Image, err error) {
	ctx, cancel := context.WithTimeout(ctx, longestPull)
	defer cancel()
	quiet := *d.puller
	quiet.events = podEvents{status.DiscardEvents}
	always := *c
	always.ImagePullPolicy = v1.PullAlways
	// The pod's namespace decides which signatures are asked for.
	sandbox := &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)}}
	if _, newest, err = quiet.ensure(ctx, ctx, pod, &always, sandbox); err != nil {
		return nil, nil, err
	}
	running, err = quiet.image(ctx, &cri.ImageSpec{Image: runs})
	return newest, running, err
}

// mayUse reports whether a pod may use a local image, because it could pull it.
func (p *puller) mayUse(pod *v1.Pod, name string, image *cri.Image) (bool, error) {
	if p.o.Pulled == nil {
		return true, nil
	}
	ring, _, err := p.ring(pod)
	if err != nil {
		return false, err
	}
	var secrets []pull.Source
	for _, c := range ring.Lookup(name) {
		if c.Source != nil {
			secrets = append(secrets, *c.Source)
		}
	}
	may, err := p.o.Pulled.MayUse(name, image.Id, secrets)
	if err != nil { // the pod pulls if it may not use the image, which rewrites the record
		p.o.Log.Warn("record of who may use an image not read or written", "image", name, "err", err)
	}
	return may, nil
}

// image returns the local image, nil if it is not there.
func (p *puller) image(ctx context.Context, spec *cri.ImageSpec) (*cri.Image, error) {
	resp, err := p.o.Images.ImageStatus(ctx, spec, false)
	if err = Fault(err); errors.Is(err, fault.Invalid) {
		return nil, Reasoned("InvalidImageName", err)
	} else if err != nil {
		return nil, Reasoned("ImageInspectError", err)
	}
	return resp.GetImage(), nil
}

// tagged adds the default tag to an image reference with neither tag nor digest.
func tagged(image string) string {
	name := image[strings.LastIndex(image, "/")+1:]
	if strings.ContainsAny(name, ":@") {
		return image
	}
	return image + ":latest"
}

// pull waits for its turn and pulls, trying each matching credential until the registry accepts
// one. It returns that credential's secret; nil if the node's was used, or none was needed.
func (p *puller) pull(ctx context.Context, pod *v1.Pod, c *v1.Container, spec *cri.ImageSpec, sandbox *cri.PodSandboxConfig) (ref string, by *pull.Source, err error) {
	credentials, err := p.credentials(ctx, pod, spec.Image)
	if err != nil {
		return "", nil, Reasoned("ErrImagePull", err)
	}
	asked := time.Now()
	stage.Next(ctx, "wait for a turn to pull")
	done, err := p.queue.wait(ctx)
	if err != nil {
		return "", nil, err
	}
	defer done()
	if p.o.Pulled != nil {
		if err := p.o.Pulled.Begin(spec.Image); err != nil {
			return "", nil, Reasoned("ErrImagePull", err)
		}
		defer func() {
			if err == nil {
				return
			}
			if noteErr := p.o.Pulled.Failed(spec.Image); noteErr != nil { // other pods have to pull it too, if it arrived
				p.o.Log.WarnContext(ctx, "end of a pull not noted", "err", noteErr)
			}
		}()
	}
	p.events.record(pod, c.Name, "", v1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", c.Image))
	begun := time.Now()
	stage.Next(ctx, "pull")
	stop := p.follow(ctx, pod, c, spec.Image, done)
	ref, by, err = p.tryPull(ctx, spec, credentials, sandbox)
	stop()
	switch {
	case err == nil:
		p.events.record(pod, c.Name, "", v1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting)",
			c.Image, time.Since(begun).Truncate(time.Millisecond), time.Since(asked).Truncate(time.Millisecond)))
		return ref, by, nil
	case ctx.Err() != nil:
		return "", nil, ctx.Err()
	}
	p.events.record(pod, c.Name, "", v1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", c.Image, err))
	for _, known := range []error{crierrors.ErrRegistryUnavailable, crierrors.ErrSignatureValidationFailed} {
		if rest, ok := strings.CutPrefix(err.Error(), known.Error()); ok {
			what := "the registry is unavailable"
			if known == crierrors.ErrSignatureValidationFailed {
				what = "the signature validation failed"
			}
			return "", nil, Reasoned(known.Error(), fmt.Errorf("image pull failed for %s because %s%s", c.Image, what, rest))
		}
	}
	return "", nil, Reasoned("ErrImagePull", err)
}

func (p *puller) tryPull(ctx context.Context, spec *cri.ImageSpec, credentials []pull.Credential, sandbox *cri.PodSandboxConfig) (string, *pull.Source, error) {
	if len(credentials) == 0 {
		ref, err := p.o.Images.PullImage(ctx, spec, nil, sandbox)
		return ref, nil, Fault(err)
	}
	var errs []error
	for _, c := range credentials {
		ref, err := p.o.Images.PullImage(ctx, spec, &cri.AuthConfig{Username: c.Username, Password: c.Password}, sandbox)
		if err == nil {
			return ref, c.Source, nil
		}
		errs = append(errs, Fault(err))
	}
	return "", nil, errors.Join(errs...)
}

// credentials returns those of the pod's pull secrets, of the plugins, and of the node. A
// missing secret is reported and left out: the pull may succeed without it.
func (p *puller) credentials(ctx context.Context, pod *v1.Pod, image string) ([]pull.Credential, error) {
	ring, missing, err := p.ring(pod)
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		p.events.Event(status.PodRef(pod), v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", ")))
	}
	found := ring.Lookup(image)
	node := slices.IndexFunc(found, func(c pull.Credential) bool { return c.Source == nil })
	if node < 0 {
		node = len(found)
	}
	return slices.Insert(found, node, p.o.Plugins.Lookup(ctx, image)...), nil
}

// ring returns the pod's pull secrets, except the missing ones, and the node's own credentials.
func (p *puller) ring(pod *v1.Pod) (ring *pull.Ring, missing []string, err error) {
	if ring, err = pull.LoadRing(filepath.Join(p.o.Root, "config.json")); err != nil {
		return nil, nil, err
	}
	var secrets []*v1.Secret
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		s, err := p.o.Objects.Secret(pod.Namespace, ref.Name)
		if err != nil {
			missing = append(missing, ref.Name)
			continue
		}
		secrets = append(secrets, s)
	}
	if ring, err = ring.With(secrets...); err != nil {
		return nil, nil, fmt.Errorf("pod %s: %w", podsync.KeyOf(pod), err)
	}
	return ring, missing, nil
}
