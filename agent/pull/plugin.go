package pull

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/periodic"
	config "k8s.io/kubelet/config/v1"
	credentialprovider "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"sigs.k8s.io/yaml"
)

// Plugins are the kubelet's credential providers: programs that provide the credentials of the
// images that match their configuration. A program reads a CredentialProviderRequest from its
// standard input and writes a CredentialProviderResponse (credentialprovider.kubelet.k8s.io/v1)
// to its standard output.
type Plugins struct {
	dir       string
	providers []config.CredentialProvider
	log       *slog.Logger

	mu    sync.Mutex
	cache map[string]cached // by provider, cacheKeyType and its key; guarded by mu
}

type cached struct {
	auth  map[string]credentialprovider.AuthConfig
	until time.Time
}

const (
	providerGroup = "credentialprovider.kubelet.k8s.io/"
	// pluginPatience is how long a plugin may take, as in the kubelet.
	pluginPatience = time.Minute
)

// LoadPlugins reads a CredentialProviderConfig of any version of kubelet.config.k8s.io. The
// programs are in dir.
func LoadPlugins(path, dir string, log *slog.Logger) (*Plugins, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var c config.CredentialProviderConfig
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if c.Kind != "CredentialProviderConfig" || !strings.HasPrefix(c.APIVersion, "kubelet.config.k8s.io/") {
		return nil, fmt.Errorf("%s: it is a %s of %s, want a CredentialProviderConfig of kubelet.config.k8s.io/v1", path, c.Kind, c.APIVersion)
	}
	seen := map[string]bool{}
	for _, p := range c.Providers {
		switch {
		case p.Name == "" || p.Name != filepath.Base(p.Name) || p.Name == "." || p.Name == "..":
			return nil, fmt.Errorf("%s: %q is not the name of a program", path, p.Name)
		case seen[p.Name]:
			return nil, fmt.Errorf("%s: %s is given twice", path, p.Name)
		case len(p.MatchImages) == 0 || p.DefaultCacheDuration == nil || p.DefaultCacheDuration.Duration < 0:
			return nil, fmt.Errorf("%s: %s: want matchImages, and a defaultCacheDuration", path, p.Name)
		case !strings.HasPrefix(p.APIVersion, providerGroup):
			return nil, fmt.Errorf("%s: %s: apiVersion is %q, want %sv1", path, p.Name, p.APIVersion, providerGroup)
		case p.TokenAttributes != nil:
			return nil, fmt.Errorf("%s: %s: tokenAttributes: tokens of service accounts need an API server", path, p.Name)
		}
		seen[p.Name] = true
		if _, err := exec.LookPath(filepath.Join(dir, p.Name)); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, p.Name, err)
		}
	}
	return &Plugins{dir: dir, providers: c.Providers, log: log, cache: map[string]cached{}}, nil
}

// Lookup asks the plugins that match an image for its credentials. It logs and skips a plugin
// that fails: the pull may succeed without it. A nil p has no plugins.
func (p *Plugins) Lookup(ctx context.Context, image string) []Credential {
	if p == nil {
		return nil
	}
	ring := &Ring{}
	repository := Repository(image)
	for i := range p.providers {
		if !slices.ContainsFunc(p.providers[i].MatchImages, func(m string) bool { return matches(normal(m), repository) }) {
			continue
		}
		found, err := p.ask(ctx, &p.providers[i], image)
		for place, a := range found {
			ring.entries = append(ring.entries, entry{normal(place), Credential{Username: a.Username, Password: a.Password}})
		}
		if err != nil {
			p.log.WarnContext(ctx, "credential provider failed", "kind", p.providers[i].Name, "err", err)
		}
	}
	ring.sort()
	return ring.Lookup(image)
}

// ask returns a plugin's answer, from the cache if possible.
func (p *Plugins) ask(ctx context.Context, of *config.CredentialProvider, image string) (map[string]credentialprovider.AuthConfig, error) {
	host, _, _ := strings.Cut(Repository(image), "/")
	keys := map[credentialprovider.PluginCacheKeyType]string{
		credentialprovider.ImagePluginCacheKeyType:    of.Name + " Image " + image,
		credentialprovider.RegistryPluginCacheKeyType: of.Name + " Registry " + host,
		credentialprovider.GlobalPluginCacheKeyType:   of.Name + " Global",
	}
	p.mu.Lock()
	for _, key := range keys {
		if c, ok := p.cache[key]; ok && !periodic.Past(c.until) {
			p.mu.Unlock()
			return c.auth, nil
		}
	}
	p.mu.Unlock()
	r, err := p.run(ctx, of, image)
	if err != nil {
		return nil, err
	}
	key, ok := keys[r.CacheKeyType]
	if !ok {
		return nil, fmt.Errorf("cacheKeyType is %q, want Image, Registry or Global", r.CacheKeyType)
	}
	if keep := cmp.Or(r.CacheDuration, of.DefaultCacheDuration).Duration; keep > 0 {
		p.keep(key, r.Auth, keep)
	}
	return r.Auth, nil
}

// keep caches credentials for d, and drops expired ones.
func (p *Plugins) keep(key string, auth map[string]credentialprovider.AuthConfig, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.cache, func(_ string, c cached) bool { return periodic.Past(c.until) })
	p.cache[key] = cached{auth, time.Now().Add(d)}
}

func (p *Plugins) run(ctx context.Context, of *config.CredentialProvider, image string) (*credentialprovider.CredentialProviderResponse, error) {
	request, err := json.Marshal(map[string]string{"kind": "CredentialProviderRequest", "apiVersion": of.APIVersion, "image": image})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, pluginPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(p.dir, of.Name), of.Args...)
	cmd.Env = os.Environ()
	for _, e := range of.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(request), &out, &errs
	cmd.WaitDelay = time.Second // a child of the plugin may keep the pipes open
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	var r credentialprovider.CredentialProviderResponse
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return nil, fmt.Errorf("its answer is not JSON") // the text may hold a secret
	}
	if r.Kind != "CredentialProviderResponse" || r.APIVersion != of.APIVersion {
		return nil, fmt.Errorf("it answers with a %s of %s, want a CredentialProviderResponse of %s", r.Kind, r.APIVersion, of.APIVersion)
	}
	return &r, nil
}
