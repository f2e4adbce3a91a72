// Small commits of every kind, and the library's own answer to what a table needs. Compiled by Janino in the driver's JVM, so
// no generics and no lambdas. Data files are a few bytes each: nobody reads their rows.
package tests;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.FileOutputStream;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Function;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.DeleteFiles;
import org.apache.iceberg.ExpireSnapshots;
import org.apache.iceberg.FileMetadata;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.ManageSnapshots;
import org.apache.iceberg.ManifestContent;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.ManifestReader;
import org.apache.iceberg.RewriteFiles;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;

public final class RealHistory {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** Appends files; those that are not on disk are written. Staged: a snapshot that no ref names. */
  public void append(Table table, String pathsJson, String branch, boolean staged) throws Exception {
    AppendFiles append = table.newFastAppend();
    String[] paths = (String[]) JSON.readValue(pathsJson, String[].class);
    for (int i = 0; i < paths.length; i++) {
      append.appendFile(file(table, paths[i]));
    }
    if (staged) {
      append.stageOnly();
    } else {
      append.toBranch(branch);
    }
    append.commit();
  }

  public void delete(Table table, String pathsJson) throws Exception {
    DeleteFiles delete = table.newDelete();
    String[] paths = (String[]) JSON.readValue(pathsJson, String[].class);
    for (int i = 0; i < paths.length; i++) {
      delete.deleteFile(paths[i]);
    }
    delete.commit();
  }

  /** Live files, by the paths their manifests spell, become one. */
  public void rewrite(Table table, String pathsJson, String output) throws Exception {
    Set gone = set(pathsJson);
    RewriteFiles rewrite = table.newRewrite();
    Iterator files = content(table, table.currentSnapshot(), ManifestContent.DATA).iterator();
    while (files.hasNext()) {
      DataFile file = (DataFile) files.next();
      if (gone.contains(file.location())) {
        rewrite.deleteFile(file);
      }
    }
    rewrite.addFile(file(table, output));
    rewrite.commit();
  }

  /** A delete file: positions in a Parquet file, a deletion vector where the format version asks for one, or keys. */
  public void rowDelta(Table table, String path, String target, boolean keys) throws Exception {
    int version = ((HasTableOperations) table).operations().current().formatVersion();
    FileMetadata.Builder delete = FileMetadata.deleteFileBuilder(table.spec())
        .withPath(path).withFileSizeInBytes(8L).withRecordCount(1L);
    if (keys) {
      delete.ofEqualityDeletes(new int[] {1}).withFormat("parquet");
    } else if (version >= 3) {
      delete.ofPositionDeletes().withFormat("puffin").withReferencedDataFile(target)
          .withContentOffset(4L).withContentSizeInBytes(4L);
    } else {
      delete.ofPositionDeletes().withFormat("parquet");
    }
    write(path);
    table.newRowDelta().addDeletes(delete.build()).commit();
  }

  public void rewriteManifests(Table table) {
    table.rewriteManifests().clusterBy(new Function() {
      public Object apply(Object file) {
        return "all";
      }
    }).commit();
  }

  /** What ManageSnapshots can do, by name. */
  public void manage(Table table, String what, String name, long id) {
    ManageSnapshots manage = table.manageSnapshots();
    if (what.equals("tag")) {
      manage.createTag(name, id);
    } else if (what.equals("branch")) {
      manage.createBranch(name, id);
    } else if (what.equals("untag")) {
      manage.removeTag(name);
    } else if (what.equals("unbranch")) {
      manage.removeBranch(name);
    } else if (what.equals("rollback")) {
      manage.setCurrentSnapshot(id);
    } else if (what.equals("cherry-pick")) {
      manage.cherrypick(id);
    } else {
      throw new IllegalArgumentException(what);
    }
    manage.commit();
  }

  /** Another tool drops snapshots and leaves their files where they are. */
  public void expire(Table table, String idsJson) throws Exception {
    long[] ids = (long[]) JSON.readValue(idsJson, long[].class);
    ExpireSnapshots expire = table.expireSnapshots().cleanExpiredFiles(false);
    for (int i = 0; i < ids.length; i++) {
      expire.expireSnapshotId(ids[i]);
    }
    expire.commit();
  }

  /** Everything the library finds when it walks every snapshot there is; the live data files of the current one apart. */
  public String needed(Table table) throws Exception {
    ObjectNode answer = JSON.createObjectNode();
    TableMetadata metadata = ((HasTableOperations) table).operations().current();
    Set all = new TreeSet();
    all.add(metadata.metadataFileLocation());
    answer.putArray("metadata").add(metadata.metadataFileLocation());
    Iterator log = metadata.previousFiles().iterator();
    while (log.hasNext()) {
      all.add(((TableMetadata.MetadataLogEntry) log.next()).file());
    }
    ArrayNode snapshots = answer.putArray("snapshots");
    Iterator each = table.snapshots().iterator();
    while (each.hasNext()) {
      Snapshot snapshot = (Snapshot) each.next();
      snapshots.add(snapshot.snapshotId());
      all.add(snapshot.manifestListLocation());
      Iterator manifests = snapshot.allManifests(table.io()).iterator();
      while (manifests.hasNext()) {
        all.add(((ManifestFile) manifests.next()).path());
      }
      all.addAll(paths(content(table, snapshot, ManifestContent.DATA)));
      all.addAll(paths(content(table, snapshot, ManifestContent.DELETES)));
    }
    put(answer, "needed", all);
    put(answer, "live", table.currentSnapshot() == null
        ? new TreeSet() : paths(content(table, table.currentSnapshot(), ManifestContent.DATA)));
    return answer.toString();
  }

  private static void put(ObjectNode answer, String name, Set values) {
    ArrayNode array = answer.putArray(name);
    Iterator each = values.iterator();
    while (each.hasNext()) {
      array.add((String) each.next());
    }
  }

  private static Set paths(List files) {
    Set found = new TreeSet();
    Iterator each = files.iterator();
    while (each.hasNext()) {
      found.add(((ContentFile) each.next()).location());
    }
    return found;
  }

  private static List content(Table table, Snapshot snapshot, ManifestContent kind) throws Exception {
    List found = new ArrayList();
    Iterator manifests = snapshot.allManifests(table.io()).iterator();
    while (manifests.hasNext()) {
      ManifestFile manifest = (ManifestFile) manifests.next();
      if (manifest.content() != kind) {
        continue;
      }
      ManifestReader reader = kind == ManifestContent.DATA
          ? ManifestFiles.read(manifest, table.io(), table.specs())
          : ManifestFiles.readDeleteManifest(manifest, table.io(), table.specs());
      Iterator files = reader.iterator();
      while (files.hasNext()) {
        found.add(((ContentFile) files.next()).copy());
      }
      reader.close();
    }
    return found;
  }

  private static DataFile file(Table table, String path) throws Exception {
    write(path);
    return DataFiles.builder(table.spec()).withPath(path).withFileSizeInBytes(size(path)).withRecordCount(1L)
        .withFormat("parquet").build();
  }

  private static long size(String path) {
    return new File(plain(path)).length();
  }

  /** Eight bytes, where there is no such file yet. */
  private static void write(String path) throws Exception {
    File local = new File(plain(path));
    if (local.exists()) {
      return;
    }
    local.getParentFile().mkdirs();
    FileOutputStream out = new FileOutputStream(local);
    out.write(new byte[8]);
    out.close();
  }

  private static String plain(String path) {
    return path.startsWith("file:") ? path.substring("file:".length()) : path;
  }

  private static Set set(String json) throws Exception {
    Set found = new HashSet();
    String[] values = (String[]) JSON.readValue(json, String[].class);
    for (int i = 0; i < values.length; i++) {
      found.add(values[i]);
    }
    return found;
  }
}
