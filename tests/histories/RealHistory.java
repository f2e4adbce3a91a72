// Small commits of every kind, and the library's own answer to what a table needs. Compiled by Janino in the driver's JVM, so
// no generics and no lambdas. Data files, and delete files but vectors, are on disk before they are committed.
package tests;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Function;
import java.util.function.Supplier;
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
import org.apache.iceberg.deletes.BaseDVFileWriter;

public final class RealHistory {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** Appends files, each with its number of rows. Staged: a snapshot that no ref names. */
  public void append(Table table, String rowsJson, String branch, boolean staged) throws Exception {
    AppendFiles append = table.newFastAppend();
    JsonNode rows = JSON.readTree(rowsJson);
    Iterator paths = rows.fieldNames();
    while (paths.hasNext()) {
      String path = (String) paths.next();
      append.appendFile(file(table, path, rows.get(path).asLong()));
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
  public void rewrite(Table table, String pathsJson, String output, long rows) throws Exception {
    Set gone = set(pathsJson);
    RewriteFiles rewrite = table.newRewrite();
    Iterator files = content(table, table.currentSnapshot(), ManifestContent.DATA).iterator();
    while (files.hasNext()) {
      DataFile file = (DataFile) files.next();
      if (gone.contains(file.location())) {
        rewrite.deleteFile(file);
      }
    }
    if (rows > 0L) {
      rewrite.addFile(file(table, output, rows));
    }
    rewrite.commit();
  }

  /** A file of keys, or of positions, that is there. */
  public void rowDelta(Table table, String path, long rows, boolean keys) throws Exception {
    FileMetadata.Builder delete = FileMetadata.deleteFileBuilder(table.spec())
        .withPath(path).withFileSizeInBytes(size(path)).withRecordCount(rows).withFormat("parquet");
    table.newRowDelta().addDeletes((keys ? delete.ofEqualityDeletes(new int[] {1}) : delete.ofPositionDeletes()).build())
        .commit();
  }

  /** A deletion vector of one row, in a file of its own; the data file must not have one yet. */
  public void vector(final Table table, final String path, String target, long position) throws Exception {
    Supplier output = new Supplier() {
      public Object get() {
        return table.io().newOutputFile(path);
      }
    };
    BaseDVFileWriter writer = new BaseDVFileWriter(output, new Function() {
      public Object apply(Object none) {
        return null;
      }
    });
    writer.delete(target, position, table.spec(), null);
    writer.close();
    table.newRowDelta().addDeletes((DeleteFile) writer.result().deleteFiles().get(0)).commit();
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

  /** Everything the library finds when it walks every snapshot there is; the live data files of the current one apart, and
   * those of them that have a vector. */
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
    Snapshot current = table.currentSnapshot();
    put(answer, "live", current == null ? new TreeSet() : paths(content(table, current, ManifestContent.DATA)));
    put(answer, "struck", current == null ? new TreeSet() : referenced(content(table, current, ManifestContent.DELETES)));
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

  /** The data files that a vector names. */
  private static Set referenced(List deletes) {
    Set found = new TreeSet();
    Iterator each = deletes.iterator();
    while (each.hasNext()) {
      DeleteFile file = (DeleteFile) each.next();
      if (file.referencedDataFile() != null) {
        found.add(file.referencedDataFile());
      }
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

  private static DataFile file(Table table, String path, long rows) {
    return DataFiles.builder(table.spec()).withPath(path).withFileSizeInBytes(size(path)).withRecordCount(rows)
        .withFormat("parquet").build();
  }

  private static long size(String path) {
    return new File(plain(path)).length();
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
