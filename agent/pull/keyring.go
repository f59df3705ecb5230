// Package pull has what pulls of images need beside the runtime: the credentials for an image, in
// the node's docker config.json, in a pod's pull secrets and by credential provider plugins (Ring,
// Plugins); who may use an image that is there (Ledger); and the progress of pulls (Watcher).
package pull

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// A Credential is a user name and password for a registry.
type Credential struct {
	Username, Password string
	Source             *Source // the pull secret it comes from; nil if it is the node's
}

// A Source is the pull secret that a credential comes from.
type Source struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Hash      string `json:"credentialHash"` // SHA-256 of user name and password, in hexadecimal
}

// A Ring is a set of credentials.
//
// A credential is for a registry, or for the repositories in it whose path has a given prefix.
// Its host may have wildcards ("*.example.com"), each for one part of the name. The most
// specific credentials come first. Several may match, since secrets are rotated; each is tried
// in turn.
type Ring struct {
	entries []entry // most specific first
}

type entry struct {
	place string // host, or host/path
	Credential
}

// file is docker's config.json. The older .dockercfg is only the inner map.
type file struct {
	Auths map[string]auth `json:"auths"`
}

type auth struct {
	Username string `json:"username"`
	Password string `json:"password"`
	Auth     string `json:"auth"` // base64 of username:password
}

// LoadRing reads a docker config.json. A missing file makes an empty Ring.
func LoadRing(name string) (*Ring, error) {
	r := &Ring{}
	data, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	return r, r.addJSON(name, data)
}

// With returns a Ring that also has the credentials of pull secrets. For the same place they
// come before those of r.
func (r *Ring) With(secrets ...*v1.Secret) (*Ring, error) {
	all := &Ring{}
	for _, s := range secrets {
		if err := all.addSecret(s); err != nil {
			return nil, err
		}
		all.mark(s)
	}
	all.entries = append(all.entries, r.entries...)
	all.sort()
	return all, nil
}

// addSecret adds the credentials of a pull secret. A Secret of another type has none.
func (r *Ring) addSecret(s *v1.Secret) error {
	name := "secret " + s.Namespace + "/" + s.Name
	switch {
	case s.Type == v1.SecretTypeDockerConfigJson || s.Data[v1.DockerConfigJsonKey] != nil:
		return r.addJSON(name, s.Data[v1.DockerConfigJsonKey])
	case s.Type == v1.SecretTypeDockercfg || s.Data[v1.DockerConfigKey] != nil:
		var auths map[string]auth
		if err := json.Unmarshal(s.Data[v1.DockerConfigKey], &auths); err != nil {
			return fmt.Errorf("%s: it is not a .dockercfg", name) // the text may hold the secret
		}
		return r.add(name, auths)
	}
	return nil
}

// mark sets the source of the entries that have none.
func (r *Ring) mark(s *v1.Secret) {
	for i := range r.entries {
		c := &r.entries[i].Credential
		if c.Source == nil {
			sum := sha256.Sum256([]byte(c.Username + "\x00" + c.Password))
			c.Source = &Source{UID: string(s.UID), Namespace: s.Namespace, Name: s.Name, Hash: hex.EncodeToString(sum[:])}
		}
	}
}

func (r *Ring) addJSON(name string, data []byte) error {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return fmt.Errorf("%s: it is not a docker config.json", name) // the text may hold the secret
	}
	return r.add(name, f.Auths)
}

func (r *Ring) add(name string, auths map[string]auth) error {
	for place, a := range auths {
		c := Credential{Username: a.Username, Password: a.Password}
		if a.Auth != "" {
			text, err := base64.StdEncoding.DecodeString(a.Auth)
			if err != nil {
				return fmt.Errorf("%s: credentials for %s are not base64", name, place)
			}
			var ok bool
			if c.Username, c.Password, ok = strings.Cut(string(text), ":"); !ok {
				return fmt.Errorf("%s: credentials for %s are not user:password", name, place)
			}
		}
		r.entries = append(r.entries, entry{normal(place), c})
	}
	r.sort()
	return nil
}

// sort sorts by place, most specific first. It is stable, so that the credentials of secrets stay
// before the node's.
func (r *Ring) sort() {
	slices.SortStableFunc(r.entries, func(a, b entry) int { return strings.Compare(b.place, a.place) })
}

// normal returns "host" or "host/path", without what docker may add: the scheme and the version
// of the protocol.
func normal(place string) string {
	place = strings.TrimPrefix(strings.TrimPrefix(place, "https://"), "http://")
	host, rest, _ := strings.Cut(place, "/")
	for _, version := range []string{"v1", "v2"} {
		if rest == version || strings.HasPrefix(rest, version+"/") {
			rest = strings.TrimPrefix(rest[2:], "/")
		}
	}
	if rest = strings.TrimSuffix(rest, "/"); rest == "" {
		return host
	}
	return host + "/" + rest
}

// defaultHost is docker's name for the registry of images without a host.
const defaultHost = "index.docker.io"

// Lookup returns the credentials for an image, most specific first. For an image of docker.io
// those for index.docker.io count if there are no others.
func (r *Ring) Lookup(image string) []Credential {
	repository := Repository(image)
	found := r.of(func(place string) bool { return matches(place, repository) })
	if len(found) == 0 && strings.HasPrefix(repository, "docker.io/") {
		found = r.of(func(place string) bool { return place == defaultHost })
	}
	return found
}

// of returns the credentials for the places for which fits holds.
func (r *Ring) of(fits func(place string) bool) []Credential {
	var found []Credential
	for _, e := range r.entries {
		if fits(e.place) {
			found = append(found, e.Credential)
		}
	}
	return found
}

// matches reports whether a credential's place covers a repository.
func matches(place, repository string) bool {
	p, err := url.Parse("https://" + place)
	if err != nil {
		return false
	}
	t, err := url.Parse("https://" + repository)
	if err != nil || !strings.HasPrefix(t.Path, p.Path) {
		return false
	}
	parts, port := split(p.Host)
	targets, targetPort := split(t.Host)
	if port != targetPort || len(parts) != len(targets) {
		return false
	}
	for i := range parts {
		if ok, err := path.Match(parts[i], targets[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func split(hostport string) (parts []string, port string) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		host, port = hostport, ""
	}
	return strings.Split(host, "."), port
}

// Repository returns the full name of an image, with its registry and without tag and digest:
// "docker.io/library/busybox" for "busybox:1".
func Repository(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		name = name[:i]
	}
	host, rest, ok := strings.Cut(name, "/")
	switch {
	case !ok:
		return "docker.io/library/" + name
	case !strings.ContainsAny(host, ".:") && host != "localhost":
		return "docker.io/" + name
	case host == defaultHost:
		return "docker.io/" + rest
	}
	return name
}
