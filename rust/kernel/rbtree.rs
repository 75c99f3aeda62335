// SPDX-License-Identifier: GPL-2.0

//! A sorted map: the kernel's red-black trees, with nodes allocated beforehand.
//!
//! C header: `include/linux/rbtree.h`.

use core::{
    cmp::Ordering,
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    }, //
};

use crate::{
    alloc::{
        AllocError,
        Flags,
        KBox, //
    },
    bindings,
    container_of, //
};

/// A place in a tree.
#[repr(C)]
struct Node<K, V> {
    links: bindings::rb_node,
    key: K,
    value: V,
}

/// A node with its key and value, outside of any tree.
pub struct RBTreeNode<K, V> {
    node: KBox<Node<K, V>>,
}

// SAFETY: It owns its key and value; the links are not used outside of a tree.
unsafe impl<K: Send, V: Send> Send for RBTreeNode<K, V> {}
// SAFETY: It gives no access to them.
unsafe impl<K: Sync, V: Sync> Sync for RBTreeNode<K, V> {}

impl<K, V> RBTreeNode<K, V> {
    /// Allocates a node, so that inserting cannot fail.
    pub fn new(key: K, value: V, flags: Flags) -> Result<Self, AllocError> {
        Ok(Self {
            node: KBox::new(
                Node {
                    links: bindings::rb_node::default(),
                    key,
                    value,
                },
                flags,
            )?,
        })
    }

    /// The key and the value.
    pub fn to_key_value(self) -> (K, V) {
        let node = KBox::into_inner(self.node);

        (node.key, node.value)
    }
}

/// A map from `K` to `V`, sorted.
///
/// # Invariants
///
/// Every node below `root` is the `links` of a `Node<K, V>` that came out of a `KBox` and belongs to
/// this tree, and they are sorted by key, all different.
pub struct RBTree<K, V> {
    root: bindings::rb_root,
    _p: PhantomData<Node<K, V>>,
}

// SAFETY: It owns its nodes.
unsafe impl<K: Send, V: Send> Send for RBTree<K, V> {}
// SAFETY: A shared tree gives shared keys and values.
unsafe impl<K: Sync, V: Sync> Sync for RBTree<K, V> {}

impl<K, V> RBTree<K, V> {
    /// An empty one.
    pub fn new() -> Self {
        // INVARIANT: There are no nodes.
        Self {
            root: bindings::rb_root::default(),
            _p: PhantomData,
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.root.rb_node.is_null()
    }

    /// All entries, by key.
    pub fn iter(&self) -> Iter<'_, K, V> {
        let mut first = ptr::null_mut();
        let mut at = self.root.rb_node;

        // `rb_first()`, which newer kernels have inline.
        while !at.is_null() {
            first = at;
            // SAFETY: By the type invariant.
            at = unsafe { (*at).rb_left };
        }
        Iter {
            next: first,
            _tree: PhantomData,
        }
    }

    /// All keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &'_ K> {
        self.iter().map(|(k, _)| k)
    }

    /// All values, sorted by key.
    pub fn values(&self) -> impl Iterator<Item = &'_ V> {
        self.iter().map(|(_, v)| v)
    }
}

impl<K: Ord, V> RBTree<K, V> {
    /// The node with that key, or NULL.
    fn find(&self, key: &K) -> *mut Node<K, V> {
        let mut at = self.root.rb_node;

        while !at.is_null() {
            // SAFETY: By the type invariant.
            let node = unsafe { container_of!(at, Node<K, V>, links) };
            // SAFETY: As above.
            at = match key.cmp(unsafe { &(*node).key }) {
                // SAFETY: As above.
                Ordering::Less => unsafe { (*at).rb_left },
                // SAFETY: As above.
                Ordering::Greater => unsafe { (*at).rb_right },
                Ordering::Equal => return node,
            };
        }
        ptr::null_mut()
    }

    /// The value of that key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let node = self.find(key);

        // SAFETY: If it is not NULL it is valid as long as the tree is borrowed.
        (!node.is_null()).then(|| unsafe { &(*node).value })
    }

    /// The value of that key.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let node = self.find(key);

        // SAFETY: As above.
        (!node.is_null()).then(|| unsafe { &mut (*node).value })
    }

    /// At the node with that key, or with the next greater one; `None` if there is none.
    pub fn cursor_lower_bound(&self, key: &K) -> Option<Cursor<'_, K, V>> {
        let mut best = ptr::null_mut();
        let mut at = self.root.rb_node;

        while !at.is_null() {
            // SAFETY: By the type invariant.
            let node = unsafe { container_of!(at, Node<K, V>, links) };
            // SAFETY: As above.
            at = match key.cmp(unsafe { &(*node).key }) {
                Ordering::Less => {
                    best = node;
                    // SAFETY: As above.
                    unsafe { (*at).rb_left }
                }
                // SAFETY: As above.
                Ordering::Greater => unsafe { (*at).rb_right },
                Ordering::Equal => {
                    best = node;
                    break;
                }
            };
        }
        // INVARIANT: It is a node of the tree, which is borrowed.
        Some(Cursor {
            at: NonNull::new(best)?,
            _tree: PhantomData,
        })
    }

    /// Puts a node in. Returns the one that had this key.
    pub fn insert(&mut self, node: RBTreeNode<K, V>) -> Option<RBTreeNode<K, V>> {
        let old = self.remove_node(&node.node.key);
        let mut parent: *mut bindings::rb_node = ptr::null_mut();
        let mut link: *mut *mut bindings::rb_node = &raw mut self.root.rb_node;
        let node = KBox::into_raw(node.node);

        loop {
            // SAFETY: It is the root's, or a field of a valid node.
            let at = unsafe { *link };
            if at.is_null() {
                break;
            }
            // SAFETY: By the type invariant, and `node` is valid.
            let less = unsafe { (*node).key < (*container_of!(at, Node<K, V>, links)).key };
            parent = at;
            link = if less {
                // SAFETY: `at` is valid.
                unsafe { &raw mut (*at).rb_left }
            } else {
                // SAFETY: As above.
                unsafe { &raw mut (*at).rb_right }
            };
        }
        // INVARIANT: It goes where its key belongs, which was free, and belongs to the tree now.
        // SAFETY: `link` is an empty place below `parent`, and all are valid.
        unsafe {
            bindings::ro2ibk_rb_insert(&raw mut (*node).links, parent, link, &raw mut self.root)
        };
        old
    }

    /// Takes the node with that key out.
    pub fn remove_node(&mut self, key: &K) -> Option<RBTreeNode<K, V>> {
        let node = self.find(key);

        if node.is_null() {
            return None;
        }
        // SAFETY: It is in this tree.
        unsafe { bindings::rb_erase(&raw mut (*node).links, &raw mut self.root) };
        Some(RBTreeNode {
            // SAFETY: It came out of a `KBox`, and the tree does not know it any more.
            node: unsafe { KBox::from_raw(node) },
        })
    }

    /// Takes the value of that key out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        Some(self.remove_node(key)?.to_key_value().1)
    }
}

impl<K, V> Default for RBTree<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Drop for RBTree<K, V> {
    fn drop(&mut self) {
        // SAFETY: The tree is valid.
        let mut at = unsafe { bindings::rb_first_postorder(&raw const self.root) };

        while !at.is_null() {
            // SAFETY: By the type invariant.
            let node = unsafe { container_of!(at, Node<K, V>, links) };
            // Nodes come after all below them, so the next one does not need this one.
            //
            // SAFETY: As above.
            at = unsafe { bindings::rb_next_postorder(at) };
            // SAFETY: It came out of a `KBox`, and is not looked at any more.
            drop(unsafe { KBox::from_raw(node) });
        }
    }
}

/// A place in an [`RBTree`].
///
/// # Invariants
///
/// `at` is a node of the tree that is borrowed for `'a`.
pub struct Cursor<'a, K, V> {
    at: NonNull<Node<K, V>>,
    _tree: PhantomData<&'a RBTree<K, V>>,
}

impl<'a, K, V> Cursor<'a, K, V> {
    /// Key and value there.
    pub fn current(&self) -> (&'a K, &'a V) {
        // SAFETY: By the type invariant.
        let node: &'a Node<K, V> = unsafe { self.at.as_ref() };

        (&node.key, &node.value)
    }
}

/// The entries of an [`RBTree`], by key.
pub struct Iter<'a, K, V> {
    next: *mut bindings::rb_node,
    _tree: PhantomData<&'a RBTree<K, V>>,
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        if self.next.is_null() {
            return None;
        }
        // SAFETY: It is a node of the tree, which is borrowed.
        let node = unsafe { container_of!(self.next, Node<K, V>, links) };
        // SAFETY: As above.
        self.next = unsafe { bindings::rb_next(self.next) };
        // SAFETY: As above.
        Some(unsafe { (&(*node).key, &(*node).value) })
    }
}
